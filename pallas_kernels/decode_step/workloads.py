"""Workloads of decode steps: shapes and calls of benchmarks and compile checks, and verified cases."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.decode_step import api, reference
from pallas_kernels.decode_step.problem import ConvProblem, TaylorProblem, WindowProblem
from pallas_kernels.sliding_window.cache import SlidingWindowCache
from pallas_kernels.taylor_attention.features import n_features
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import Inputs, KernelCase
from pallas_kernels.workload import OpWorkloads, Workload

HEADS: dict[str, Any] = {"h": 16, "v": 64}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCase(KernelCase):
    """y and the state after one token."""

    t: int = 1
    k: int = 16
    v: int = 64

    def call(self, operands: tuple, cotangents: tuple, variant: Variant) -> list[jax.Array]:
        del cotangents, variant
        *outputs, _ = self.OP.backends[self.implementation].forward(*operands, options=self.step_options)
        return outputs

    @property
    def step_options(self) -> Any:
        """Options of the step."""
        raise NotImplementedError

    def token(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Normal numbers (b, *shape) in the dtype of the case."""
        return self.tokens(rng, *shape)[:, 0]

    def qkv(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        heads = (self.h, self.k), (self.g, self.k), (self.g, self.v)
        return tuple(self.token(rng, *shape) for shape in heads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaylorStepCase(StepCase):
    """A step of Taylor attention."""

    OP: ClassVar = api.TAYLOR
    PROBLEM: ClassVar = TaylorProblem
    NAMED: ClassVar = ("taylor", "b", "h", "g", "k", "v", "dtype", "decay", "numerator")

    decay: bool = False
    numerator: bool = False
    """Whether outputs are not normalized."""

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "s", "z"), ()

    @property
    def step_options(self) -> api.TaylorOptions:
        return api.TaylorOptions(self.k**-0.5, 1e-12, not self.numerator)

    def inputs(self, seed: int) -> Inputs:
        """The state of 40 earlier tokens."""
        rng = np.random.default_rng(seed)
        keys, (first, second) = rng.standard_normal((self.b, 40, self.h, self.k)), np.triu_indices(self.k)
        past = np.concatenate([np.ones_like(keys[..., :1]), keys, keys[..., first] * keys[..., second]], axis=-1)
        s = np.einsum("bjhf,bjhv->bhfv", past, rng.standard_normal((self.b, 40, self.h, self.v)))
        decay = np.linspace(0.8, 1.0, self.h).astype(np.float32) if self.decay else None
        state = s.astype(np.float32), past.sum(1, dtype=np.float32)
        return Inputs((*self.qkv(rng), *state, decay), ())

    def reference(self, q, k, v, s, z, decay):
        return reference.taylor(q, k, v, s, z, decay, self.step_options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowStepCase(StepCase):
    """A step of attention to a ring, whose rows are before, at and after the end of the first lap."""

    OP: ClassVar = api.WINDOW
    PROBLEM: ClassVar = WindowProblem
    NAMED: ClassVar = ("attention", "b", "h", "g", "k", "v", "window", "dtype")

    window: int = 64
    cache_dtype: str = "bfloat16"

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "ring_k", "ring_v"), ()

    @property
    def step_options(self) -> api.WindowOptions:
        return api.WindowOptions(self.k**-0.5)

    def inputs(self, seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        rings = ((self.b, self.window, self.g, width) for width in (self.k, self.v))
        cached = (rng.standard_normal(shape).astype(jnp.dtype(self.cache_dtype)) for shape in rings)
        w = self.window
        position = np.resize(np.array([w // 2, 3 * w + 1, 0, w - 1, w], np.int32), self.b)
        return Inputs((*self.qkv(rng), *cached, position), ())

    def reference(self, q, k, v, ring_k, ring_v, position):
        return reference.window(q, k, v, ring_k, ring_v, position, self.step_options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvStepCase(StepCase):
    """A step of a short convolution."""

    OP: ClassVar = api.CONV
    PROBLEM: ClassVar = ConvProblem
    NAMED: ClassVar = ("conv", "b", "d", "w", "dtype", "gates", "plain", "bias")

    d: int = 70
    w: int = 4
    gates: int = 0
    plain: int = 0
    """Channels without a SiLU."""
    bias: bool = False

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y", "history"), ()

    @property
    def step_options(self) -> api.ConvOptions:
        return api.ConvOptions(self.plain)

    def inputs(self, seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        x, into, out = (self.token(rng, self.d) for _ in range(3))
        history = rng.standard_normal((self.b, self.w - 1, self.d)).astype(x.dtype)
        taps, bias = self.floats(rng, self.w, self.d), self.floats(rng, self.d)
        gates = into if self.gates > 1 else None, out if self.gates else None
        return Inputs((x, taps, bias if self.bias else None, *gates, history), ())

    def reference(self, x, taps, bias, input_gate, output_gate, history):
        return reference.conv(x, taps, bias, input_gate, output_gate, history, self.step_options)


CASES: dict[str, list[KernelCase]] = {
    "gpu": [
        *(
            TaylorStepCase(implementation="triton", backward=False, **shape)
            for shape in [
                {"b": 2, "h": 4, "g": 2},
                {"b": 3, "h": 2, "k": 5, "v": 7, "decay": True},
                {"b": 2, "k": 16, "v": 112, "decay": True, "dtype": "float32"},
                {"b": 2, "k": 8, "v": 33, "numerator": True},
                {"b": 128, "h": 16, "g": 16},
            ]
        ),
        *(
            WindowStepCase(implementation="triton", backward=False, **shape)
            for shape in [
                {"b": 5, "h": 4, "k": 64},
                {"b": 5, "h": 6, "k": 20, "v": 12, "window": 7, "dtype": "float32", "cache_dtype": "float32"},
                {"b": 5, "h": 2, "k": 64, "window": 129},
                {"b": 5, "h": 2, "g": 1, "k": 128, "v": 128, "window": 1},
                {"b": 128, "h": 16, "g": 16, "k": 64},
            ]
        ),
        *(
            ConvStepCase(implementation="triton", backward=False, **shape)
            for shape in [
                {"b": 3, "w": 3, "gates": 1},
                {"b": 2, "w": 4, "plain": 30, "bias": True},
                {"b": 2, "w": 8, "d": 600, "gates": 2, "plain": 600, "dtype": "float32"},
                {"b": 2, "w": 2, "gates": 2, "bias": True},
                {"b": 128, "w": 3, "d": 2048, "gates": 1},
            ]
        ),
    ],
    "tpu": [],
    "cpu": [],
}


def _workloads(step: Callable, truth: Callable, state: Callable) -> OpWorkloads:
    """Steps of one kind; `step(state, *token, implementation=...)`."""
    return OpWorkloads(
        op="decode_step", call=lambda problem, implementation: step, truth=lambda problem: truth, state=state,
        step=lambda problem, implementation: lambda *x: step(*x, implementation=implementation), step_truth=truth,
    )  # fmt: skip


def _taylor_truth(state, q, k, v):
    y, s, z = reference.taylor(q, k, v, state.s, state.z, None, api.TaylorOptions(q.shape[-1] ** -0.5, 1e-12, True))
    return y, TaylorState(s, z)


def _taylor_state(problem: TaylorProblem, seed: int) -> TaylorState:
    keys, shape = jax.random.split(jax.random.key(seed)), (problem.b, problem.h, n_features(problem.k))
    return TaylorState(
        jax.random.normal(keys[0], (*shape, problem.v), jnp.float32),
        1.0 + jax.random.uniform(keys[1], shape, jnp.float32),
    )


def _window_truth(cache, q, k, v):
    options = api.WindowOptions(q.shape[-1] ** -0.5)
    y, ring_k, ring_v = reference.window(q, k, v, cache.k, cache.v, cache.position, options)
    return y, SlidingWindowCache(ring_k, ring_v, cache.position + 1)


def _window_state(problem: WindowProblem, seed: int) -> SlidingWindowCache:
    keys = jax.random.split(jax.random.key(seed))
    rings = ((problem.b, problem.window, problem.kv_heads, width) for width in (problem.k, problem.v))
    k, v = (jax.random.normal(key, ring).astype(jnp.bfloat16) for key, ring in zip(keys, rings, strict=True))
    return SlidingWindowCache(k, v, jnp.full((problem.b,), 3 * problem.window, jnp.int32))


def _conv(history, x, *gates, implementation):
    taps = ConvProblem(b=1, t=1, d=x.shape[1], w=history.shape[1] + 1).parameters()[0]
    named = dict(zip(("output_gate", "input_gate"), gates, strict=False))
    return api.conv_step(history, x, taps, n_plain=0, implementation=implementation, **named)


def _conv_truth(history, x, *gates):
    taps = ConvProblem(b=1, t=1, d=x.shape[1], w=history.shape[1] + 1).parameters()[0].astype(x.dtype)
    gates = (*gates, None, None)[:2]
    return reference.conv(x, taps, None, gates[1], gates[0], history, api.ConvOptions(0))


def _conv_state(problem: ConvProblem, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (problem.b, problem.w - 1, problem.d)).astype(problem.dtype)


def _group(b: int) -> tuple[Workload, ...]:
    taylor, window, conv = (
        _workloads(api.taylor_step, _taylor_truth, _taylor_state),
        _workloads(api.window_step, _window_truth, _window_state),
        _workloads(_conv, _conv_truth, _conv_state),
    )
    rings = {"window": 64, "cache": 1024}
    return (
        *taylor.group({f"taylor_b{b}": TaylorProblem(b=b, t=1, k=16, **HEADS)}, "step"),
        *window.group(
            {f"{x}_b{b}": WindowProblem(b=b, t=1, k=64, window=n, **HEADS) for x, n in rings.items()}, "step"
        ),
        *conv.group({f"conv_b{b}": ConvProblem(b=b, t=1, d=2048, w=3, gates=1)}, "step"),
    )


GROUPS = {"headline": _group(128), "step": _group(1)}
"""Steps of Based 360M, and of its Transformer++ with a cache of 1,024 slots."""
