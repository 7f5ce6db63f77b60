"""Workloads of the selective scan: shapes and calls of benchmarks and compile checks, and verified cases.

Arrays are x, delta, b and c; a is a constant, because its gradient, a sum over the batch, cannot be checked on some
rows.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.selective_scan import mosaic_tpu_layout, reference
from pallas_kernels.selective_scan.api import OP, selective_scan
from pallas_kernels.selective_scan.problem import Problem
from pallas_kernels.verify.kernel_case import Inputs, KernelCase, both_passes, document_keep
from pallas_kernels.workload import OpWorkloads, in_blocks

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
"""mamba_360m: a layer of a model with 360M parameters, and the tokens of a training step."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    def run(x, delta, b, c, **options):
        return selective_scan(x, delta, problem.rates(), b, c, implementation=implementation, **options)

    return run


def _truth(problem: Problem) -> Callable:
    def run(x, delta, b, c, state):
        if state is None:
            state = jnp.zeros((len(x), problem.d, problem.n), x.dtype)
        return _in_blocks(x, delta, problem.rates().astype(x.dtype), b, c, state)

    return run


def _in_blocks(x, delta, a, b, c, state):
    def recurrence(x, delta, b, c, state):
        return reference.recurrence(x, delta, a, b, c, initial_state=state)

    return in_blocks(recurrence, state, (x, delta, b, c))


def _state(problem: Problem, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (problem.b, problem.d, problem.n), jnp.float32)


def _kept(problem: Problem) -> float:
    """Bytes of the float32 states that mosaic_tpu saves."""
    return 0.0 if mosaic_tpu_layout.objection(problem) else 4.0 * math.prod(mosaic_tpu_layout.border_shape(problem))


WORKLOADS = OpWorkloads(op="selective_scan", call=_call, truth=_truth, state=_state, kept=_kept)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanCase(KernelCase):
    """y and the final state, or all gradients, that of a (a sum over rows) only for one row; documents of 37 tokens."""

    OP: ClassVar = OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "b", "d", "n", "dtype", "delta", "documents")

    h: int = 1
    g: int = 1
    d: int = 256
    n: int = 16
    delta_dtype: str = "float32"
    documents: bool = False

    @property
    def delta(self) -> str:
        return f"delta_{self.delta_dtype}"

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "state"), ("dx", "ddelta", "da" if self.b == 1 else "", "db", "dc", "dstate")

    def inputs(self, seed: int) -> Inputs:
        """Every third token decays little, every 13th not at all."""
        rng = np.random.default_rng(seed)
        x, dy, b, c = (self.tokens(rng, size) for size in (self.d, self.d, self.n, self.n))
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, 0.5) * (np.arange(self.t) % 13 != 12)
        delta = (rng.random((self.b, self.t, self.d)) * size[:, None]).astype(jnp.dtype(self.delta_dtype))
        a = -2 * rng.random((self.d, self.n)).astype(np.float32)
        state, dstate = self.floats(rng, 2, self.b, self.d, self.n)
        keep = document_keep(self.b, self.t) if self.documents else None
        return Inputs((x, delta, a, b, c, keep, state), (dy, dstate))

    def reference(self, x, delta, a, b, c, keep, state):
        if keep is None:
            return _in_blocks(x, delta, a, b, c, state)
        ids = jnp.cumsum(keep == 0, axis=1)
        return reference.recurrence(x, delta, a, b, c, initial_state=state, segment_ids=ids)


VERIFIED: list[dict[str, Any]] = [
    {"t": 64},
    {"t": 65, "n": 8},
    {"t": 72, "b": 2, "delta_dtype": "bfloat16"},
    {"t": 200, "documents": True},
    {"t": 8184, "d": 512},
    {"t": 8192, "b": 4, "d": 1024},
]
CASES = {
    "gpu": both_passes(ScanCase, "mosaic_gpu", *VERIFIED),
    "tpu": both_passes(ScanCase, "mosaic_tpu", *VERIFIED),
    "cpu": [
        *both_passes(ScanCase, "mosaic_gpu", {"t": 40, "d": 64}),
        *both_passes(ScanCase, "mosaic_tpu", {"t": 40, "n": 8, "dtype": "float32"}),
    ],
}
