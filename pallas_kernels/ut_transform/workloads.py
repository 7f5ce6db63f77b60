"""Workloads of the UT transform and of the values that tokens write: shapes, their calls, and their truth."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from pallas_kernels.delta_chunks import reference as recurrence
from pallas_kernels.ut_transform.api import ut_transform
from pallas_kernels.ut_transform.problem import Problem, ValuesProblem
from pallas_kernels.ut_transform.values_api import delta_values
from pallas_kernels.workload import OpWorkloads

SIZE: dict[str, Any] = {"b": 4, "t": 8192, "h": 16}
SHAPES = {
    "headline": {
        "b4_h16_t8192_k64": Problem(**SIZE, k=64),
        "b4_h16_t8192_k64_decay": Problem(**SIZE, k=64, decay="token"),
        "b4_h16_t8192_k128_decay": Problem(**SIZE, k=128, decay="token"),
        "b4_h16_t8192_k64_v64": ValuesProblem(**SIZE, k=64, v=64),
        "b4_h16_t8192_k64_v64_decay": ValuesProblem(**SIZE, k=64, v=64, decay="token"),
    },
    "channel": {
        "b4_h16_t8192_k64_channel": Problem(**SIZE, k=64, decay="channel"),
        "b4_h16_t8192_k64_v64_channel": ValuesProblem(**SIZE, k=64, v=64, decay="channel"),
    },
    "cpu": {"text_t2048": Problem(b=4, t=2048, h=4, k=64, dtype=jnp.float32)},
}
"""Shapes of the floors in README.md, the same with decays per channel of the keys, and one for a CPU."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    op = delta_values if isinstance(problem, ValuesProblem) else ut_transform
    return lambda *inputs: tuple(op(*inputs, implementation=implementation))


def _truth(problem: Problem) -> Callable:
    """The reference; of `delta_values` with that of the recurrence."""

    def run(k, *others):
        *others, state = others
        if not isinstance(problem, ValuesProblem):
            return tuple(ut_transform(k, *others, implementation="reference")), state
        v, *others = others
        mix, read, write, keep, keys = ut_transform(k, *others, implementation="reference")
        y, state = recurrence.recurrence(v, read, write, mix, keep, initial_state=state)
        return (y, keys), state

    return run


def _outputs(found: tuple, problem: Problem) -> tuple:
    """What a call computes: without decays write is the keys, and keep is 1; the keys are an input."""
    if isinstance(problem, ValuesProblem):
        return found[:1]
    return found[: 2 if problem.decay == "none" else 4]


WORKLOADS = OpWorkloads(op="ut_transform", call=_call, truth=_truth, outputs=_outputs)
GROUPS = WORKLOADS.groups(SHAPES)
