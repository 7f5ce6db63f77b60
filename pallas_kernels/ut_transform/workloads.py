"""Workloads of the UT transform and of the values that tokens write: shapes and calls of benchmarks and compile checks,
and verified cases."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import reference as recurrence
from pallas_kernels.op import Options
from pallas_kernels.ut_transform import api, reference, values_api
from pallas_kernels.ut_transform.api import ut_transform
from pallas_kernels.ut_transform.problem import Decay, Problem, ValuesProblem
from pallas_kernels.ut_transform.values_api import delta_values
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import HEADLINE, Inputs, KernelCase, both_passes
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
    """Reference of `ut_transform`, or of `delta_values` with the recurrence."""

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
    """Computed results: without decays write equals the keys and keep is 1; the keys are an input."""
    if isinstance(problem, ValuesProblem):
        return found[:1]
    return found[: 2 if problem.decay == "none" else 4]


WORKLOADS = OpWorkloads(op="ut_transform", call=_call, truth=_truth, outputs=_outputs)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformCase(KernelCase):
    """mix, read, write and keep, or all gradients; of `ut_inverse` where k is 0, with rates or without."""

    OP: ClassVar = api.OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "b", "h", "k", "decay", "dtype", "no_rates", "repeated")

    k: int = 64
    decay: Decay = "none"
    beta: bool = True
    repeated: bool = False
    """Whether keys nearly repeat."""

    @property
    def no_rates(self) -> bool:
        return not self.beta

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        outputs = ("mix", "read", "write", "keep")[: 1 if self.k == 0 else 2 if self.decay == "none" else 4]
        gradients = "dx", *["dbeta"] * self.beta, *["dlog_decay"] * (self.decay != "none")
        return outputs, gradients

    @property
    def bound(self) -> float:
        """Gradients with keys that repeat are products of rounded inverses, whose terms cancel."""
        return 0.04 if self.repeated and self.backward else super().bound

    def inputs(self, seed: int) -> Inputs:
        rng, token = np.random.default_rng(seed), jnp.dtype(self.dtype)
        tokens, chunks = (self.b, self.t, self.h), (self.b, self.t // 64, self.h)
        x = rng.standard_normal((*tokens, self.k) if self.k else (*chunks, 64, 64))
        if self.repeated:
            x = 0.1 * x + x[:, :1]
        x = x / np.linalg.norm(x, axis=-1, keepdims=True) if self.k else 0.1 * x
        beta = log_decay = dread = dwrite = dkeep = dkeys = None
        if self.beta:
            beta = rng.random(tokens).astype(np.float32)
            beta = 2 - np.float32(0.02) * beta if self.repeated else 2 * beta
        if self.decay != "none":
            shape = tokens if self.decay == "token" else (*tokens, self.k)
            log_decay = np.float32(-0.3) * rng.random(shape).astype(np.float32)
        dmix = rng.standard_normal((*chunks, 64, 64)).astype(token)
        if self.k:
            dread, dwrite, dkeys = (self.tokens(rng, self.h, self.k) for _ in range(3))
            dkeep = None if log_decay is None else self.floats(rng, *chunks, self.k)
        return Inputs((x.astype(token), beta, log_decay), (dmix, dread, dwrite, dkeep, dkeys))

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"chunk": 64}

    def reference(self, x, beta, log_decay):
        if self.k == 0:
            return reference.inverse(x, beta), None, None, None, None
        mix, read, write, keep = reference.transform(x, beta, log_decay, 64)
        return mix, read, write, None if log_decay is None else keep, x


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuesCase(KernelCase):
    """Values that tokens write, or all gradients."""

    OP: ClassVar = values_api.OP
    PROBLEM: ClassVar = ValuesProblem
    NAMED: ClassVar = ("values", "t", "b", "h", "k", "v", "decay", "dtype", "weak")

    k: int = 64
    v: int = 64
    decay: Decay = "none"
    weak: bool = False
    """Whether more than half of a state survives a chunk."""

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y",), ("dk", "dv", "dbeta", *["dlog_decay"] * (self.decay != "none"), "dstate")

    def inputs(self, seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        k, v, beta, *decays = (np.asarray(x) for x in self.problem.inputs(seed))
        log_decay = decays[0] * np.float32(0.03 if self.weak else 1.0) if decays else None
        state = self.floats(rng, self.b, self.h, self.k, self.v)
        dy, dkeys = (self.tokens(rng, self.h, width) for width in (self.v, self.k))
        return Inputs((k, v, beta, log_decay, state), (dy, dkeys))

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"options": Options(return_state=False, save_states=self.backward)}

    def reference(self, k, v, beta, log_decay, state):
        mix, read, write, keep = reference.transform(k, beta, log_decay, 64)
        return recurrence.recurrence(v, read, write, mix, keep, initial_state=state)[0], k


TRANSFORMS: list[dict[str, Any]] = [
    {"t": 64},
    {"t": 128, "b": 2, "decay": "token"},
    {"t": 576, "k": 128, "decay": "token"},
    {"t": 64, "k": 0},
    {"t": 64, "repeated": True},
    {"t": 576, "b": 2, "k": 0, "beta": False},
    {"t": 576, "b": 2, "decay": "channel"},
    HEADLINE,
    HEADLINE | {"decay": "token"},
    HEADLINE | {"decay": "channel"},
    HEADLINE | {"k": 128, "decay": "token"},
]
VALUES: list[dict[str, Any]] = [
    {"t": 64},
    {"t": 576, "b": 2, "decay": "token"},
    {"t": 128, "k": 128, "v": 128, "decay": "token"},
    {"t": 128, "b": 2, "decay": "channel"},
    {"t": 192, "weak": True, "decay": "channel"},
    {"t": 576, "decay": "channel"},
    {"t": 64, "v": 128, "decay": "channel"},
    HEADLINE,
    HEADLINE | {"decay": "token"},
    HEADLINE | {"decay": "channel"},
]
NARROW_TRANSFORMS: list[dict[str, Any]] = [
    {"t": 64, "k": 16},
    {"t": 128, "b": 2, "k": 32, "decay": "token"},
    {"t": 64, "k": 16, "decay": "channel"},
    {"t": 128, "k": 32, "decay": "channel"},
]
NARROW_VALUES: list[dict[str, Any]] = [
    {"t": 128, "k": 16, "v": 24, "decay": "token"},
    {"t": 64, "k": 32, "v": 40, "decay": "channel"},
]
"""Keys that only Triton's kernels serve."""
ONE_HEAD: dict[str, Any] = {"t": 64, "h": 1, "g": 1, "decay": "token"}
CASES = {
    "gpu": [
        *both_passes(TransformCase, "mosaic_gpu", *TRANSFORMS),
        *both_passes(ValuesCase, "mosaic_gpu", *VALUES),
        *both_passes(TransformCase, "triton", *NARROW_TRANSFORMS),
        *both_passes(ValuesCase, "triton", *NARROW_VALUES),
    ],
    "tpu": [],
    "cpu": [*both_passes(TransformCase, "mosaic_gpu", ONE_HEAD), *both_passes(ValuesCase, "mosaic_gpu", ONE_HEAD)],
}
