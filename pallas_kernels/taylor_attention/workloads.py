"""Taylor attention's workloads: the shapes of `specs.py`, as functions to compile and to time."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.api import taylor_attention, taylor_attention_step
from pallas_kernels.taylor_attention.features import n_features
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.workload import Attention


def _forward(spec: Problem, implementation: str | None):
    del spec
    return functools.partial(taylor_attention, implementation=implementation)


def _step(spec: Problem, implementation: str | None):
    del spec
    if implementation not in (None, "xla"):
        raise NotImplementedError(f"taylor_attention_step: implementation={implementation!r} must be 'xla' or None")
    return taylor_attention_step


def _state(spec: Problem, seed: int) -> TaylorState:
    f = n_features(spec.k)
    keys = jax.random.split(jax.random.key(seed), 2)
    return TaylorState(
        jax.random.normal(keys[0], (spec.b, spec.h, f, spec.v), jnp.float32),
        1.0 + jax.random.uniform(keys[1], (spec.b, spec.h, f), jnp.float32),
    )


TAYLOR = Attention("taylor_attention", _forward, _step, _state)

GROUPS = {
    "headline": TAYLOR.group(specs.HEADLINE, "forward", "forward_backward"),
    "key_dims": TAYLOR.group(specs.KEY_DIMS, "forward", "forward_backward"),
    "float32": TAYLOR.group(specs.FLOAT32, "forward", "forward_backward"),
    "fig5_batch": TAYLOR.group(specs.FIGURE_5_BATCH, "forward", "forward_backward"),
    "fig5_length": TAYLOR.group(specs.FIGURE_5_LENGTH, "forward", "forward_backward"),
    "step": TAYLOR.group(specs.STEP, "step"),
    "cpu": TAYLOR.group(specs.CPU, "forward", "forward_backward"),
    "cpu_length": TAYLOR.group(specs.CPU_LENGTH, "forward", "forward_backward"),
}
"""Name of a group -> its workloads: the paper's figures, decoding, and what a CPU can run."""
