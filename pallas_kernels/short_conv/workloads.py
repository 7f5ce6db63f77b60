"""Workloads of short_conv: shapes and calls of benchmarks and compile checks, and verified cases.

Arrays are x and the gates; taps and bias are constants, because their gradients, sums over the batch, cannot be checked
on some rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from pallas_kernels.short_conv import reference
from pallas_kernels.short_conv.api import OP, Options, short_conv
from pallas_kernels.short_conv.problem import Problem
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import Inputs, KernelCase, both_passes
from pallas_kernels.workload import OpWorkloads

SHAPES = {
    "headline": {
        "based_360m": Problem(b=8, t=2048, d=2048, w=3, gates=1),
        "mamba_360m": Problem(b=8, t=2048, d=2048, w=4),
    },
    "cpu": {"text_t512": Problem(b=2, t=512, d=256, w=3, gates=1, dtype=jnp.float32)},
}


def _arguments(problem: Problem, dtype: Any, gates: tuple) -> dict[str, Any]:
    """taps, and options: gates and offsets, a SiLU, a bias where there is no gate."""
    taps, bias, offsets = (x.astype(dtype) for x in problem.parameters())
    named = dict(zip(("output_gate", "input_gate"), gates, strict=False))
    return {"taps": taps, "n_plain": 0, "bias": None if gates else bias, "offsets": offsets if gates else None, **named}


def _call(problem: Problem, implementation: str | None) -> Callable:
    def run(x, *gates, **options):
        return short_conv(x, **_arguments(problem, jnp.float32, gates), implementation=implementation, **options)

    return run


def _truth(problem: Problem) -> Callable:
    def run(x, *gates_and_state):
        *gates, state = gates_and_state
        return reference.recurrence(x, **_arguments(problem, x.dtype, tuple(gates)), initial_state=state)

    return run


WORKLOADS = OpWorkloads(op="short_conv", call=_call, truth=_truth)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvCase(KernelCase):
    """y, or all gradients, those of taps and bias (sums over rows) only where all rows are compared."""

    OP: ClassVar = OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "b", "d", "w", "dtype", "gates", "plain", "bare", "documents", "shifted")

    h: int = 1
    g: int = 1
    d: int = 70
    w: int = 4
    gates: int = 0
    plain: int = 0
    """Channels without a SiLU."""
    bare: bool = False
    """Whether there is neither a bias nor a history."""
    documents: bool = False
    shifted: bool = False
    """Whether there are offsets."""

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        sums = ["dtaps", *(() if self.bare else ("dbias",))]
        of_tokens = [
            name for name, wanted in zip(("d_in", "d_out"), (self.gates > 1, self.gates > 0), strict=True) if wanted
        ]
        whole = self.b == 1 or not self.long
        sums = sums if whole else [""] * len(sums)
        offsets = ("doffsets" * whole,) if self.shifted else ()
        return ("y",), ("dx", *sums, *of_tokens, *(() if self.bare else ("dhistory",)), *offsets)

    @property
    def long(self) -> bool:
        """Whether only the last row is compared."""
        return self.t > 1000

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"options": Options(n_plain=self.plain, save_states=True)}

    def inputs(self, seed: int) -> Inputs:
        """Gates of both signs; documents of 1 to 40 tokens."""
        rng = np.random.default_rng(seed)
        x, into, out, dy = (self.tokens(rng, self.d) for _ in range(4))
        taps, bias = self.floats(rng, self.w, self.d), self.floats(rng, self.d)
        history = rng.standard_normal((self.b, self.w - 1, self.d)).astype(x.dtype)
        documents = np.cumsum(rng.random((self.b, self.t)) < 0.15, axis=1).astype(np.int32)
        documents -= documents[:, :1]
        operands = (
            x, taps, None if self.bare else bias, into if self.gates > 1 else None, out if self.gates else None,
            None if self.bare else history, documents if self.documents else None,
            self.floats(rng, 3, self.d) if self.shifted else None,
        )  # fmt: skip
        return Inputs(operands, (dy,))

    def reference(self, x, taps, bias, input_gate, output_gate, history, documents, offsets):
        y, _ = reference.recurrence(
            x, taps, bias=bias, input_gate=input_gate, output_gate=output_gate, n_plain=self.plain,
            offsets=offsets, segment_ids=documents, initial_state=history,
        )  # fmt: skip
        return (y,)


VERIFIED: list[dict[str, Any]] = [
    {"t": 1, "w": 2, "bare": True},
    {"t": 2, "b": 2, "w": 4},
    {"t": 37, "b": 2, "w": 3, "d": 130, "gates": 1, "bare": True},
    {"t": 65, "b": 2, "w": 4, "plain": 30, "documents": True},
    {"t": 66, "b": 2, "w": 3, "gates": 1, "bare": True, "shifted": True},
    {"t": 70, "w": 8, "d": 64, "gates": 2, "documents": True, "shifted": True},
    {"t": 129, "w": 3, "d": 64, "gates": 2, "plain": 64, "dtype": "float32"},
    {"t": 2048, "b": 4, "w": 3, "d": 2048, "gates": 1, "bare": True},
]
CASES = {"gpu": both_passes(ConvCase, "triton", *VERIFIED), "tpu": [], "cpu": []}
