"""Workloads of the recurrence over chunks and of the general delta rule: shapes and calls of benchmarks and compile
checks, and verified cases."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import api, general_api, reference
from pallas_kernels.delta_chunks.general_xla import CHUNK
from pallas_kernels.delta_chunks.problem import GeneralProblem, Problem
from pallas_kernels.gated_linear_attention.xla import RESET
from pallas_kernels.op import Options
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import HEADLINE, Inputs, KernelCase, both_passes
from pallas_kernels.workload import OpWorkloads, in_blocks

SHAPES = {
    "headline": {f"b4_h16_t8192_k{n}": Problem(b=4, t=8192, h=16, k=n, v=n) for n in (64, 128)},
    "channel": {"b4_h16_t8192_k64_general": GeneralProblem(b=4, t=8192, h=16, k=64, v=64)},
    "cpu": {"text_t2048": Problem(b=4, t=2048, h=4, k=64, v=64, dtype=jnp.float32)},
}
"""Shapes of the floors in README.md and of RWKV-7, and one for a CPU."""


def _call(problem: Problem | GeneralProblem, implementation: str | None) -> Callable:
    op = api.delta_chunks if isinstance(problem, Problem) else general_api.general_delta_rule
    return functools.partial(op, implementation=implementation)


def _truth(problem: Problem | GeneralProblem) -> Callable:
    definition = reference.recurrence if isinstance(problem, Problem) else general_in_blocks
    return lambda *arrays: definition(*arrays[:-1], initial_state=arrays[-1])


def general_in_blocks(q, k, v, u, z, log_decay, *, initial_state=None):
    """`reference.general_recurrence` whose gradients keep one state per block of tokens."""
    state = initial_state
    if state is None:
        state = jnp.zeros((*v.shape[:1], *v.shape[2:3], k.shape[3], v.shape[3]), np.promote_types(v.dtype, np.float32))

    def recurrence(*arrays):
        return reference.general_recurrence(*arrays[:-1], initial_state=arrays[-1])

    return in_blocks(recurrence, state, (q, k, v, u, z, log_decay), 64)


WORKLOADS = OpWorkloads(op="delta_chunks", call=_call, truth=_truth)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaCase(KernelCase):
    """y and the final state, or all gradients; chunks of 64 tokens."""

    OP: ClassVar = api.OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "b", "h", "k", "v", "dtype")

    k: int = 64
    v: int = 64

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "state"), ("dx", "dread", "dwrite", "dmix", "dkeep", "dstate")

    def inputs(self, seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        x, dy = (self.tokens(rng, self.h, self.v) for _ in range(2))
        _, *others = (np.asarray(z) for z in self.problem.inputs(seed))
        state, dstate = self.floats(rng, 2, self.b, self.h, self.k, self.v)
        return Inputs((x, *others, state), (dy, dstate))

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"options": Options(return_state=True, save_states=self.backward)}

    def reference(self, *operands):
        return reference.recurrence(*operands[:5], initial_state=operands[5])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneralCase(KernelCase):
    """y and the final state, or all gradients; keys and values of 64, documents of 37 tokens."""

    OP: ClassVar = general_api.OP
    PROBLEM: ClassVar = GeneralProblem
    NAMED: ClassVar = ("general", "t", "b", "h", "dtype", "documents")
    k: ClassVar = 64
    v: ClassVar = 64
    eager_interpretation: ClassVar[bool] = True
    """On few cores, independent kernels of one interpreted program wait for each other and do not end."""

    documents: bool = False

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "state"), ("dq", "dk", "dv", "du", "dz", "dlog_decay", "dstate")

    def inputs(self, seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        q, k, v, u, z, log_decay = (np.asarray(x) for x in self.problem.inputs(seed))
        if self.documents:
            begins = (np.arange(self.t) % 37 == 0)[:, None, None]
            u, log_decay = np.where(begins, np.zeros_like(u), u), np.where(begins, np.float32(RESET), log_decay)
        dy = self.tokens(rng, self.h, 64)
        state, dstate = self.floats(rng, 2, self.b, self.h, 64, 64)
        return Inputs((q, k, v, u, z, log_decay, state), (dy, dstate))

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"options": Options(return_state=True, save_states=self.backward)}

    def call(self, operands, cotangents, variant):
        """Kernels take whole chunks."""

        def pad(x):
            return jnp.pad(x, ((0, 0), (0, -self.t % CHUNK), (0, 0), (0, 0)))

        *tokens, state = operands
        dy, dstate = cotangents
        found = super().call((*map(pad, tokens), state), (pad(dy), dstate), variant)
        return [*(x[:, : self.t] for x in found[:-1]), found[-1]]

    def reference(self, *operands):
        return general_in_blocks(*operands[:6], initial_state=operands[6])


CHUNKS: list[dict[str, Any]] = [
    {"t": 64},
    {"t": 128, "b": 2, "k": 128},
    {"t": 192, "k": 128, "v": 128},
    {"t": 320, "v": 192},
    {"t": 64, "v": 256},
    HEADLINE,
    HEADLINE | {"k": 128, "v": 128},
]
NARROW: list[dict[str, Any]] = [{"t": 64, "k": 16, "v": 24}, {"t": 128, "b": 2, "k": 32, "v": 32}]
"""Keys that only Triton's kernels serve."""
GENERAL: list[dict[str, Any]] = [
    {"t": 64},
    {"t": 65, "b": 2},
    {"t": 200, "documents": True},
    {"t": 8184, "b": 2},
    HEADLINE,
]
ONE_HEAD: dict[str, Any] = {"t": 64, "h": 1, "g": 1}
CASES = {
    "gpu": [
        *both_passes(DeltaCase, "mosaic_gpu", *CHUNKS),
        *both_passes(GeneralCase, "mosaic_gpu", *GENERAL),
        *both_passes(DeltaCase, "triton", *NARROW),
    ],
    "tpu": [],
    "cpu": [*both_passes(DeltaCase, "mosaic_gpu", ONE_HEAD), *both_passes(GeneralCase, "mosaic_gpu", ONE_HEAD)],
}
