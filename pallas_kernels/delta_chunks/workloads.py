"""Workloads of the recurrence over chunks and of the general delta rule: shapes, their calls, and their truth."""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from pallas_kernels.delta_chunks import reference
from pallas_kernels.delta_chunks.api import delta_chunks
from pallas_kernels.delta_chunks.general_api import general_delta_rule
from pallas_kernels.delta_chunks.problem import GeneralProblem, Problem
from pallas_kernels.workload import OpWorkloads

SHAPES = {
    "headline": {f"b4_h16_t8192_k{n}": Problem(b=4, t=8192, h=16, k=n, v=n) for n in (64, 128)},
    "channel": {"b4_h16_t8192_k64_general": GeneralProblem(b=4, t=8192, h=16, k=64, v=64)},
    "cpu": {"text_t2048": Problem(b=4, t=2048, h=4, k=64, v=64, dtype=jnp.float32)},
}
"""Shapes of the floors in README.md and of RWKV-7, and one for a CPU."""


def _call(problem: Problem | GeneralProblem, implementation: str | None) -> Callable:
    op = delta_chunks if isinstance(problem, Problem) else general_delta_rule
    return functools.partial(op, implementation=implementation)


def _truth(problem: Problem | GeneralProblem) -> Callable:
    definition = reference.recurrence if isinstance(problem, Problem) else reference.general_in_blocks
    return lambda *arrays: definition(*arrays[:-1], initial_state=arrays[-1])


WORKLOADS = OpWorkloads(op="delta_chunks", call=_call, truth=_truth)
GROUPS = WORKLOADS.groups(SHAPES)
