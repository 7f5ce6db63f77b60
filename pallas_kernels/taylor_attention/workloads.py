"""Workloads of Taylor attention: shapes and calls of benchmarks and compile checks, and verified cases."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.taylor_attention import mosaic_gpu_layout, reference
from pallas_kernels.taylor_attention.api import OP, Options, taylor_attention
from pallas_kernels.taylor_attention.features import n_features
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState, taylor_attention_step
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import HEADLINE as VERIFIED, Inputs, KernelCase, both_passes
from pallas_kernels.workload import OpWorkloads, in_blocks

BLOCK = 256
"""Tokens of a block of the reference."""
EPS = 1e-12
PAPER: dict[str, Any] = {"h": 16, "k": 16, "v": 64}
"""Heads and widths of Based's kernel benchmarks."""
HEADLINE = Problem(b=4, t=8192, **PAPER)
MQAR: dict[str, Any] = {"b": 64, "h": 1, "k": 16, "v": 64, "dtype": jnp.float32}
SHAPES = {
    "headline": {"b4_h16_t8192": HEADLINE},
    "key_dims": {f"b4_h16_t8192_k{k}": dataclasses.replace(HEADLINE, k=k) for k in (24, 32)},
    "float32": {"b4_h16_t8192_float32": dataclasses.replace(HEADLINE, dtype=jnp.float32)},
    "fig5_batch": {f"fig5_b{b}_t1024": Problem(b=b, t=1024, **PAPER) for b in (1, 4, 16, 64, 128, 256)},
    "fig5_length": {f"fig5_b4_t{t}": Problem(b=4, t=t, **PAPER) for t in (1024, 2048, 4096, 8192, 16384, 32768)},
    "step": {f"step_b{b}": Problem(b=b, t=1, **PAPER) for b in (1, 4, 16, 64, 128, 256)},
    "cpu": {
        "mqar_t64": Problem(t=64, **MQAR),
        "mqar_t256": Problem(t=256, **MQAR),
        "text_t2048": Problem(b=4, t=2048, dtype=jnp.float32, **PAPER),
    },
    "cpu_length": {
        f"cpu_b1_h4_t{t}": Problem(b=1, t=t, h=4, k=16, v=64, dtype=jnp.float32) for t in (64, 256, 1024, 4096)
    },
}
"""Shapes of the floors in README.md, with wider features, and in float32; Based, Fig. 5 left (batch at 1024 tokens) and
right (length at batch 4); decode steps by batch; shapes and lengths for a CPU."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    del problem
    return functools.partial(taylor_attention, implementation=implementation)


def _step(problem: Problem, implementation: str | None) -> Callable:
    del problem
    if implementation not in (None, "xla"):
        raise NotImplementedError(f"taylor_attention_step: implementation={implementation!r} must be 'xla' or None")
    return taylor_attention_step


def _state(problem: Problem, seed: int) -> TaylorState:
    f = n_features(problem.k)
    keys = jax.random.split(jax.random.key(seed), 2)
    return TaylorState(
        jax.random.normal(keys[0], (problem.b, problem.h, f, problem.v), jnp.float32),
        1.0 + jax.random.uniform(keys[1], (problem.b, problem.h, f), jnp.float32),
    )


def _decayed(problem: Problem, implementation: str | None) -> Callable:
    """A call with decay and a given state, which returns the last one."""

    def run(*inputs):
        options: dict[str, Any] = {"return_state": True, "implementation": implementation}
        options |= {"decay": _decays(problem.h), "initial_state": _ones(problem, jnp.float32)}
        return taylor_attention(*inputs, **options)

    return run


def _decayed_truth(problem: Problem) -> Callable:
    def run(q, k, v, _):
        decay = _decays(problem.h).astype(q.dtype)
        quadratic = functools.partial(_quadratic, decay=decay)
        return in_blocks(quadratic, _ones(problem, q.dtype), (q, k, v), BLOCK), None

    return run


def _ones(problem: Problem, dtype: Any) -> TaylorState:
    rows = problem.b, problem.h, n_features(problem.k)
    return TaylorState(jnp.ones((*rows, problem.v), dtype), jnp.ones(rows, dtype))


def _decays(h: int) -> np.ndarray:
    return np.linspace(0.9, 1.0, h).astype(np.float32)


def _truth(problem: Problem) -> Callable:
    def run(q, k, v, state):
        if state is None:
            shape = (q.shape[0], problem.h, n_features(problem.k))
            state = TaylorState(jnp.zeros((*shape, problem.v), q.dtype), jnp.zeros(shape, q.dtype))
        return in_blocks(_quadratic, state, (q, k, v), BLOCK)

    return run


def _quadratic(q, k, v, state, decay=None):
    options = {"scale": q.shape[-1] ** -0.5, "eps": EPS, "normalize": True}
    return reference.quadratic(q, k, v, **options, initial_state=state, decay=decay)


WORKLOADS = OpWorkloads(op="taylor_attention", call=_call, truth=_truth, state=_state, step=_step)
DECAYED = dataclasses.replace(WORKLOADS, call=_decayed, truth=_decayed_truth)
GROUPS = WORKLOADS.groups(SHAPES) | {
    "decay": DECAYED.group({"b4_h16_t8192_decay_state": HEADLINE}, "forward_backward"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaylorCase(KernelCase):
    """y and the final state, or all gradients."""

    OP: ClassVar = OP
    PROBLEM: ClassVar = Problem
    NAMED: ClassVar = ("t", "h", "g", "dtype", "decay", "state", "split", "widths", "numerator")

    k: int = 16
    v: int = 64
    decay: bool = False
    state: bool = True
    parts: int | None = None
    """Segments of a sequence on a GPU; None: the kernel's own choice, 1 for a short one."""
    numerator: bool = False
    """Whether outputs are not normalized."""

    @property
    def split(self) -> bool | str:
        return self.parts is not None and f"segments{self.parts}"

    @property
    def widths(self) -> bool | str:
        return self.implementation == "triton" and (self.k, self.v) != (16, 64) and f"k{self.k}_v{self.v}"

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        states = ("ds", "dz") if self.state else ()
        return ("y", "s", "z"), ("dq", "dk", "dv", *states)

    def inputs(self, seed: int) -> Inputs:
        """The state of 40 earlier tokens; cotangents of states are small next to dy."""
        rng = np.random.default_rng(seed)
        heads = ((self.h, self.k), (self.g, self.k), (self.g, self.v), (self.h, self.v))
        q, k, v, dy = (self.tokens(rng, *shape) for shape in heads)
        keys, (first, second) = rng.standard_normal((self.b, 40, self.h, self.k)), np.triu_indices(self.k)
        past = np.concatenate([np.ones_like(keys[..., :1]), keys, keys[..., first] * keys[..., second]], axis=-1)
        values = rng.standard_normal((self.b, 40, self.h, self.v))
        sums: list[Any] = [np.einsum("bjhf,bjhv->bhfv", past, values).astype(np.float32), past.sum(1, dtype=np.float32)]
        slopes: list[Any] = [np.float32(0.02) * self.floats(rng, *x.shape) for x in sums]
        decay = _decays(self.h) if self.decay else None
        return Inputs((q, k, v, TaylorState(*sums) if self.state else None, decay, None), (dy, TaylorState(*slopes)))

    def options(self, variant: Variant) -> dict[str, Any]:
        segments = variant.segments or self.parts
        if self.implementation == "mosaic_gpu":
            segments = segments or mosaic_gpu_layout.kernel_segments(self.problem, mosaic_gpu_layout.TRAINING)
        options = Options(self.k**-0.5, EPS, not self.numerator, True, True, chunk_size=None, kernel_segments=segments)
        return {"options": options}

    def reference(self, q, k, v, state, decay, segment_ids):
        options = {"scale": self.k**-0.5, "eps": EPS, "normalize": not self.numerator}
        return reference.quadratic(q, k, v, **options, initial_state=state, decay=decay)


SMALL: list[dict[str, Any]] = [
    {"t": 64, "state": False},
    {"t": 64},
    {"t": 65, "b": 2},
    {"t": 72, "g": 1},
    {"t": 120, "decay": True},
    {"t": 200, "g": 1, "decay": True},
]
SPLIT: list[dict[str, Any]] = [
    {"t": 200, "parts": 2, "state": False},
    {"t": 200, "parts": 2, "decay": True},
]
ODD: list[dict[str, Any]] = [
    {"t": 72, "k": 5, "v": 7, "h": 4, "g": 2, "b": 2, "decay": True},
    {"t": 72, "k": 4, "v": 70, "parts": 2, "numerator": True},
]
"""Narrow keys and values, several blocks of values, no normalizer."""
LONG: list[dict[str, Any]] = [{"t": 8184, "b": 2}, VERIFIED]
ONE_HEAD: dict[str, Any] = {"h": 1, "g": 1}
CASES = {
    "gpu": [
        *both_passes(TaylorCase, "mosaic_gpu", *SMALL, *SPLIT, *LONG),
        *both_passes(TaylorCase, "triton", *ODD),
    ],
    "tpu": both_passes(TaylorCase, "mosaic_tpu", *SMALL, *LONG),
    "cpu": [
        *both_passes(TaylorCase, "mosaic_gpu", {"t": 40}, **ONE_HEAD),
        *both_passes(TaylorCase, "mosaic_tpu", {"t": 65, "k": 8, "v": 16, "dtype": "float32"}, **ONE_HEAD),
    ],
}
