"""Workloads of wkv4: shapes, their calls, and their truth.

Arrays are k and v; w and u are constants, whose gradients are not among the outputs: as sums over the batch they could
not be checked on some rows alone.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.wkv4 import mosaic_tpu_layout, reference
from pallas_kernels.wkv4.api import wkv4
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.wkv4.state import Wkv4State
from pallas_kernels.workload import OpWorkloads

PRESETS = {
    "rwkv4_169m": Problem(b=8, t=1024, d=768),
    "rwkv4_3b": Problem(b=8, t=4096, d=2560),
    "one_prompt": Problem(b=1, t=4096, d=2560),
}
"""Widths and lengths of published models (Peng et al. 2023, Table 2), a training step's rows and a single prompt."""
SHAPES = {
    "headline": {"b4_t8192_d1024": Problem(b=4, t=8192, d=1024)},
    "presets": PRESETS,
    "step": PRESETS,
    "cpu": {"text_t2048": Problem(b=4, t=2048, d=256, dtype=jnp.float32)},
}


def _call(problem: Problem, implementation: str | None) -> Callable:
    def run(k, v, **options):
        return wkv4(k, v, *problem.parameters(), implementation=implementation, **options)

    return run


def _truth(problem: Problem) -> Callable:
    def run(k, v, state):
        parameters = (x.astype(k.dtype) for x in problem.parameters())
        return reference.in_blocks(k, v, *parameters, initial_state=state)

    return run


def _state(problem: Problem, seed: int) -> Wkv4State:
    num, scale = jax.random.normal(jax.random.key(seed), (2, problem.b, problem.d), jnp.float32)
    return Wkv4State(num, jnp.ones_like(num), scale)


def _kept(problem: Problem) -> float:
    """The float32 sums that mosaic_tpu saves."""
    return 0.0 if mosaic_tpu_layout.objection(problem) else 4.0 * math.prod(mosaic_tpu_layout.border_shape(problem))


WORKLOADS = OpWorkloads(op="wkv4", call=_call, truth=_truth, state=_state, kept=_kept)
GROUPS = WORKLOADS.groups(SHAPES)
