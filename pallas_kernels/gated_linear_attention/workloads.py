"""Gated linear attention's workloads: the shapes of `specs.py`, as functions to compile and to time."""

import functools
import math

import jax
import jax.numpy as jnp

from pallas_kernels.gated_linear_attention import mosaic_tpu_layout, specs
from pallas_kernels.gated_linear_attention.api import gated_linear_attention
from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.workload import Attention


def _forward(spec: Problem, implementation: str | None):
    del spec
    return functools.partial(gated_linear_attention, implementation=implementation)


def _step(spec: Problem, implementation: str | None):
    """One token, as a sequence of 1 from a state."""

    def run(state, *token):
        arrays = (x[:, None] for x in token)
        forward = _forward(spec, implementation)
        y, state = forward(*arrays, initial_state=state, return_state=True)
        return y[:, 0], state

    return run


def _state(spec: Problem, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (spec.b, spec.h, spec.k, spec.v), jnp.float32)


def _kept(spec: Problem) -> float:
    """The states that mosaic_tpu saves."""
    if mosaic_tpu_layout.objection(spec) is not None:
        return 0.0
    return float(math.prod(mosaic_tpu_layout.border_shape(spec)) * jnp.dtype(spec.dtype).itemsize)


GATED = Attention("gated_linear_attention", _forward, _step, _state, _kept)

GROUPS = {
    "headline": GATED.group(specs.HEADLINE, "forward", "forward_backward"),
    "channel": GATED.group(specs.CHANNEL, "forward", "forward_backward"),
    "lengths": GATED.group(specs.LENGTHS, "forward", "forward_backward"),
    "presets": GATED.group(specs.PRESETS, "forward", "forward_backward"),
    "cpu": GATED.group(specs.CPU, "forward", "forward_backward"),
}
"""Name of a group -> its workloads."""
