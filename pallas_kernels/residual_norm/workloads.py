"""Workloads of residual_norm: shapes and calls of benchmarks and compile checks, and verified cases.

Arrays are the residual stream and the branch output; the scale is a constant, because its gradient, a sum over the
batch, cannot be checked on some rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from pallas_kernels.residual_norm import reference
from pallas_kernels.residual_norm.api import OP, Options, residual_norm
from pallas_kernels.residual_norm.problem import Problem
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import Inputs, KernelCase, both_passes
from pallas_kernels.workload import OpWorkloads

EPS = 1e-5
SHAPES = {
    "headline": {
        "based_360m": Problem(b=16, t=2048, d=1024),
        "width_2048": Problem(b=8, t=2048, d=2048),
    },
    "cpu": {"text_t512": Problem(b=2, t=512, d=256, dtype=jnp.float32)},
}


def _call(problem: Problem, implementation: str | None) -> Callable:
    def run(x, y):
        return residual_norm(x, y, problem.scale(), eps=EPS, implementation=implementation)

    return run


def _truth(problem: Problem) -> Callable:
    def run(x, y, state):
        return reference.residual_norm(x, y, problem.scale().astype(x.dtype), eps=EPS), state

    return run


WORKLOADS = OpWorkloads(op="residual_norm", call=_call, truth=_truth)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormCase(KernelCase):
    """The sum and its norm, or all gradients, those of scale and bias only where all rows are compared."""

    OP: ClassVar = OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "b", "d", "dtype", "stream", "centred", "biased", "bare")

    h: int = 1
    g: int = 1
    d: int = 70
    stream_dtype: str = "float32"
    centred: bool = False
    biased: bool = False
    bare: bool = False
    """Whether there is no branch output to add."""

    @property
    def adds(self) -> bool:
        return not self.bare

    @property
    def stream(self) -> str:
        """Dtype of the residual stream, for the name."""
        return f"stream_{self.stream_dtype}"

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        whole = self.b == 1 or self.t <= 1000
        names = ("dx", *(() if self.bare else ("dy",)), "dscale" * whole, *(("dbias" * whole,) if self.biased else ()))
        return ("r", "n"), names

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"options": Options(EPS, self.centred, self.dtype, None if self.bare else self.dtype)}

    def inputs(self, seed: int) -> Inputs:
        """A stream with a mean, in rows of sizes from 0.03 to 30."""
        rng = np.random.default_rng(seed)
        x, y, dr, dn = (rng.standard_normal((self.b, self.t, self.d)) for _ in range(4))
        size = 10 ** rng.uniform(-1.5, 1.5, (self.b, self.t, 1))
        x, y = (size * (x + 0.5)).astype(jnp.dtype(self.stream_dtype)), (size * y).astype(jnp.dtype(self.dtype))
        operands = x, None if self.bare else y, self.floats(rng, self.d), self.floats(rng, self.d)
        cotangents = dr.astype(x.dtype), dn.astype(y.dtype)
        return Inputs((*operands[:3], operands[3] if self.biased else None), cotangents)

    def reference(self, x, y, scale, bias):
        return reference.residual_norm(x, y, scale, bias=bias, eps=EPS, centred=self.centred)


VERIFIED: list[dict[str, Any]] = [
    {"t": 1, "d": 5},
    {"t": 3, "b": 2, "d": 70, "centred": True, "biased": True},
    {"t": 37, "b": 3, "d": 1000, "bare": True},
    {"t": 35, "d": 1024, "stream_dtype": "bfloat16", "centred": True},
    {"t": 41, "d": 2048, "dtype": "float32"},
    {"t": 5, "d": 8192, "biased": True, "bare": True, "centred": True},
    {"t": 2048, "b": 16, "d": 1024},
]
CASES = {"gpu": both_passes(NormCase, "triton", *VERIFIED), "tpu": [], "cpu": []}
