"""Sliding-window attention's workloads: the shapes of `specs.py`, as functions to compile and to time."""

import dataclasses
import functools

import jax.numpy as jnp

from pallas_kernels.sliding_window import specs
from pallas_kernels.sliding_window.api import sliding_window_attention, sliding_window_step
from pallas_kernels.sliding_window.cache import SlidingWindowCache
from pallas_kernels.sliding_window.problem import Problem
from pallas_kernels.workload import Attention


def _forward(spec: Problem, implementation: str | None):
    return functools.partial(sliding_window_attention, window=spec.window, implementation=implementation)


def _step(spec: Problem, implementation: str | None):
    """The step, or "reference": a sequence of one token after the cache."""
    if implementation == "reference":
        attend = functools.partial(_forward(spec, implementation), return_cache=True)

        def run(cache, *token):
            y, cache = attend(*(x[:, None] for x in token), initial_cache=cache)
            return y[:, 0], cache

        return run
    if implementation not in (None, "xla"):
        raise NotImplementedError(f"sliding_window_step: implementation={implementation!r} must be 'xla' or None")
    return sliding_window_step


def _state(spec: Problem, seed: int) -> SlidingWindowCache:
    """Full rings, each row at a place of its own."""
    _, k, v = dataclasses.replace(spec, t=spec.window).inputs(seed)
    return SlidingWindowCache(k, v, spec.window + jnp.arange(spec.b, dtype=jnp.int32))


WINDOW = Attention("sliding_window", _forward, _step, _state)

GROUPS = {
    "headline": WINDOW.group(specs.HEADLINE, "forward", "forward_backward"),
    "fig7_batch": WINDOW.group(specs.FIGURE_7_BATCH, "forward", "forward_backward"),
    "windows": WINDOW.group(specs.WINDOWS, "forward", "forward_backward"),
    "step": WINDOW.group(specs.STEP, "step"),
    "step_windows": WINDOW.group(specs.STEP_WINDOWS, "step"),
    "cpu": WINDOW.group(specs.CPU, "forward", "forward_backward"),
    "cpu_length": WINDOW.group(specs.CPU_LENGTH, "forward", "forward_backward"),
    "cpu_windows": WINDOW.group(specs.CPU_WINDOWS, "forward", "forward_backward"),
    "cpu_batch": WINDOW.group(specs.CPU_BATCH, "forward", "forward_backward"),
}
"""Name of a group -> its workloads: the paper's figures, decoding, and what a CPU can run."""
