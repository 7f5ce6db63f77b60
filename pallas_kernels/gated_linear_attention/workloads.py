"""Workloads of gated linear attention: shapes and calls of benchmarks and compile checks, and verified cases."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_linear_attention import mosaic_tpu_layout, reference
from pallas_kernels.gated_linear_attention.api import OP, gated_linear_attention
from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.gated_linear_attention.xla import RESET
from pallas_kernels.verify.kernel_case import HEADLINE, Inputs, KernelCase, both_passes
from pallas_kernels.workload import OpWorkloads, in_blocks

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
"""Shapes of the floors in README.md, also with decays per channel; lengths at batch 1; published models (Dao and Gu
2024; Sun et al. 2023; Yang et al. 2024); shapes for a CPU."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    del problem
    return functools.partial(gated_linear_attention, implementation=implementation)


def _truth(problem: Problem) -> Callable:
    def run(q, k, v, log_decay, state):
        if state is None:
            state = jnp.zeros((q.shape[0], problem.h, problem.k, problem.v), v.dtype)
        return in_blocks(_recurrence, state, (q, k, v, log_decay))

    return run


def _recurrence(q, k, v, log_decay, state):
    return reference.recurrence(q, k, v, log_decay, initial_state=state)


def _state(problem: Problem, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (problem.b, problem.h, problem.k, problem.v), jnp.float32)


def _kept(problem: Problem) -> float:
    """Bytes of the states that mosaic_tpu saves."""
    if mosaic_tpu_layout.objection(problem) is not None:
        return 0.0
    return float(math.prod(mosaic_tpu_layout.border_shape(problem)) * jnp.dtype(problem.dtype).itemsize)


WORKLOADS = OpWorkloads(op="gated_linear_attention", call=_call, truth=_truth, state=_state, kept=_kept)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedCase(KernelCase):
    """y and the final state, or all gradients; q and k have g heads, v has h; documents of 37 tokens."""

    OP: ClassVar = OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "h", "g", "k", "v", "dtype", "channel", "documents")

    k: int = 64
    v: int = 64
    documents: bool = False
    channel: bool = False

    @property
    def bound(self) -> float:
        return max(super().bound, 8e-3) if self.dtype == "bfloat16" else super().bound

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "s"), ("dq", "dk", "dv", "dlog_decay", "ds")

    def inputs(self, seed: int) -> Inputs:
        """Every third token decays little."""
        rng = np.random.default_rng(seed)
        heads = ((self.g, self.k), (self.g, self.k), (self.h, self.v), (self.h, self.v))
        q, k, v, dy = (self.tokens(rng, *shape) for shape in heads)
        k = (k.astype(np.float64) * self.k**-0.5).astype(k.dtype)
        shape = (self.b, self.t, self.h, *[self.k] * self.channel)
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, 0.5)
        decay = (-rng.random(shape) * size.reshape(-1, *[1] * (len(shape) - 2))).astype(np.float32)
        if self.documents:
            decay[:, 37::37] = RESET
        state, dstate = np.float32(0.3) * self.floats(rng, 2, self.b, self.h, self.k, self.v)
        return Inputs((q, k, v, decay, state), (dy, dstate))

    def reference(self, q, k, v, log_decay, state):
        return reference.recurrence(q, k, v, log_decay, initial_state=state)


SMALL: list[dict[str, Any]] = [{"t": 64}, {"t": 65, "b": 2}, {"t": 72, "g": 1, "k": 128}]
WIDE: dict[str, Any] = {"t": 200, "documents": True, "v": 128, "k": 128}
LONG: list[dict[str, Any]] = [{"t": 8184, "b": 2}, HEADLINE]
VERIFIED = [*SMALL, WIDE, *LONG, *(x | {"channel": True} for x in ({"t": 65, "b": 2}, WIDE, *LONG))]
CASES = {
    "gpu": both_passes(GatedCase, "mosaic_gpu", *VERIFIED),
    "tpu": both_passes(GatedCase, "mosaic_tpu", *VERIFIED),
    "cpu": both_passes(GatedCase, "mosaic_gpu", {"t": 40, "h": 1, "g": 1}),
}
