"""Workloads of gated linear attention: shapes, their calls, and their truth."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gated_linear_attention import mosaic_tpu_layout, reference
from pallas_kernels.gated_linear_attention.api import gated_linear_attention
from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.workload import OpWorkloads, in_blocks

BLOCK = 128
"""Tokens whose states the gradients of the truth keep at once."""
TEXT: dict[str, Any] = {"b": 4, "t": 2048, "h": 4, "k": 64, "v": 64, "dtype": jnp.float32}
SHAPES = {
    "headline": {f"b4_h16_t8192_k{n}": Problem(b=4, t=8192, h=16, k=n, v=n) for n in (64, 128)},
    "channel": {f"b4_h16_t8192_k{n}_channel": Problem(b=4, t=8192, h=16, k=n, v=n, channel=True) for n in (64, 128)},
    "lengths": {f"b1_h16_t{t}_k128": Problem(b=1, t=t, h=16, k=128, v=128) for t in (2048, 8192, 32768)},
    "presets": {
        "mamba2_130m": Problem(b=4, t=2048, h=24, g=1, k=128, v=64),
        "mamba2_2.7b": Problem(b=4, t=2048, h=80, g=1, k=128, v=64),
        "retnet_1.3b": Problem(b=4, t=2048, h=8, k=256, v=512),
        "gla_1.3b": Problem(b=4, t=2048, h=4, k=256, v=512, channel=True),
    },
    "cpu": {"text_t2048": Problem(**TEXT), "text_t2048_channel": Problem(**TEXT, channel=True)},
}
"""Shapes of the floors in README.md, the same with decays per channel, lengths at batch 1, heads and widths of
published models (Dao and Gu 2024; Sun et al. 2023; Yang et al. 2024), and shapes for a CPU."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    del problem
    return functools.partial(gated_linear_attention, implementation=implementation)


def _truth(problem: Problem) -> Callable:
    def run(q, k, v, log_decay, state):
        if state is None:
            state = jnp.zeros((q.shape[0], problem.h, problem.k, problem.v), v.dtype)
        return in_blocks(_recurrence, state, (q, k, v, log_decay), BLOCK)

    return run


def _recurrence(q, k, v, log_decay, state):
    return reference.recurrence(q, k, v, log_decay, initial_state=state)


def _state(problem: Problem, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (problem.b, problem.h, problem.k, problem.v), jnp.float32)


def _kept(problem: Problem) -> float:
    """The states that mosaic_tpu saves."""
    if mosaic_tpu_layout.objection(problem) is not None:
        return 0.0
    return float(math.prod(mosaic_tpu_layout.border_shape(problem)) * jnp.dtype(problem.dtype).itemsize)


WORKLOADS = OpWorkloads(op="gated_linear_attention", call=_call, truth=_truth, state=_state, kept=_kept)
GROUPS = WORKLOADS.groups(SHAPES)
