"""Workloads of the selective scan: shapes, their calls, and their truth.

Arrays are x, delta, b and c; a is a constant, whose gradient is not among the outputs: as a sum over the batch it could
not be checked on some rows alone.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.selective_scan import mosaic_tpu_layout, reference
from pallas_kernels.selective_scan.api import selective_scan
from pallas_kernels.selective_scan.problem import Problem
from pallas_kernels.workload import OpWorkloads

PRESETS = {
    "mamba_130m": Problem(b=4, t=2048, d=1536, n=16),
    "mamba_2.8b": Problem(b=4, t=2048, d=5120, n=16),
}
"""Widths of published models (Gu and Dao 2023, Table 12)."""
SHAPES = {
    "headline": {
        "b4_t8192_d1024_n16": Problem(b=4, t=8192, d=1024, n=16),
        "mamba_360m": Problem(b=32, t=2048, d=2048, n=16),
    },
    "presets": PRESETS,
    "step": PRESETS,
    "cpu": {"text_t2048": Problem(b=4, t=2048, d=256, n=16, dtype=jnp.float32)},
}
"""The second of the headline is a layer of a model of 360M parameters and a step's tokens."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    def run(x, delta, b, c, **options):
        return selective_scan(x, delta, problem.rates(), b, c, implementation=implementation, **options)

    return run


def _truth(problem: Problem) -> Callable:
    def run(x, delta, b, c, state):
        rates = problem.rates().astype(x.dtype)
        return reference.in_blocks(x, delta, rates, b, c, initial_state=state)

    return run


def _state(problem: Problem, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (problem.b, problem.d, problem.n), jnp.float32)


def _kept(problem: Problem) -> float:
    """The float32 states that mosaic_tpu saves."""
    return 0.0 if mosaic_tpu_layout.objection(problem) else 4.0 * math.prod(mosaic_tpu_layout.border_shape(problem))


WORKLOADS = OpWorkloads(op="selective_scan", call=_call, truth=_truth, state=_state, kept=_kept)
GROUPS = WORKLOADS.groups(SHAPES)
