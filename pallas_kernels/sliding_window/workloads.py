"""Workloads of sliding-window attention: shapes and calls of benchmarks and compile checks, and verified cases."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.benchmark import softmax
from pallas_kernels.sliding_window import reference
from pallas_kernels.sliding_window.api import OP, sliding_window_attention, sliding_window_step
from pallas_kernels.sliding_window.cache import SlidingWindowCache
from pallas_kernels.sliding_window.problem import Problem
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import HEADLINE, Inputs, KernelCase, both_passes
from pallas_kernels.workload import OpWorkloads

BASED: dict[str, Any] = {"h": 16, "k": 64, "v": 64}
"""Heads and widths of Based's models."""
MQAR: dict[str, Any] = {"b": 64, "h": 1, "k": 64, "v": 64, "dtype": jnp.float32}
CPU: dict[str, Any] = {"h": 4, "k": 64, "v": 64, "dtype": jnp.float32}
BATCHES = (1, 4, 16, 64, 128, 256)
WINDOWS = (16, 32, 64, 128, 256, 512, 1024)
SHAPES = {
    "headline": {f"b4_h16_t8192_w{w}": Problem(b=4, t=8192, window=w, **BASED) for w in (64, 128)},
    "fig7_batch": {f"fig7_b{b}_t1024": Problem(b=b, t=1024, window=64, **BASED) for b in BATCHES},
    "windows": {f"window_w{w}": Problem(b=4, t=8192, window=w, **BASED) for w in WINDOWS},
    "step": {f"step_b{b}_w64": Problem(b=b, t=1, window=64, **BASED) for b in BATCHES},
    "step_windows": {f"step_b64_w{w}": Problem(b=64, t=1, window=w, **BASED) for w in WINDOWS},
    "cpu": {
        "mqar_t64": Problem(t=64, window=16, **MQAR),
        "mqar_t256": Problem(t=256, window=64, **MQAR),
        "text_t2048": Problem(b=4, t=2048, window=64, dtype=jnp.float32, **BASED),
    },
    "cpu_length": {f"cpu_t{t}": Problem(b=1, t=t, window=64, **CPU) for t in (256, 512, 1024, 2048, 4096)},
    "cpu_windows": {f"cpu_w{w}": Problem(b=1, t=4096, window=w, **CPU) for w in (*WINDOWS, 4096)},
    "cpu_batch": {f"cpu_b{b}": Problem(b=b, t=1024, window=64, **CPU) for b in (1, 2, 4, 8, 16)},
}
"""Shapes of the floors in README.md; Based, Fig. 7 (batch at 1024 tokens); windows (Based, Fig. 1 left); decode steps
by batch and by window; shapes, lengths, windows and batches for a CPU."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    return functools.partial(sliding_window_attention, window=problem.window, implementation=implementation)


def _step(problem: Problem, implementation: str | None) -> Callable:
    """The step; "reference": a sequence of one token after the cache."""
    if implementation == "reference":
        attend = functools.partial(_call(problem, implementation), return_cache=True)

        def run(cache, *token):
            y, cache = attend(*(x[:, None] for x in token), initial_cache=cache)
            return y[:, 0], cache

        return run
    if implementation not in (None, "xla"):
        raise NotImplementedError(f"sliding_window_step: implementation={implementation!r} must be 'xla' or None")
    return sliding_window_step


def _state(problem: Problem, seed: int) -> SlidingWindowCache:
    """Full rings, with a different position in each row."""
    _, k, v = dataclasses.replace(problem, t=problem.window).inputs(seed)
    return SlidingWindowCache(k, v, problem.window + jnp.arange(problem.b, dtype=jnp.int32))


def _truth(problem: Problem) -> Callable:
    return lambda q, k, v, state: (softmax.truth(q, k, v, window=problem.window), state)


def step_truth(cache: SlidingWindowCache, q, k, v):
    """Softmax over a ring with position p in slot p % window."""
    window, group = cache.k.shape[1], q.shape[1] // k.shape[1]
    put = jax.vmap(lambda ring, token, position: ring.at[position % window].set(token))
    cache = cache._replace(k=put(cache.k, k, cache.position), v=put(cache.v, v, cache.position))
    keys, values = (jnp.repeat(x, group, axis=2) for x in (cache.k, cache.v))
    scores = jnp.einsum("bhd,bwhd->bhw", q, keys, precision="highest") * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    seen = jnp.arange(window, dtype=cache.position.dtype)[None, None, :] <= cache.position[:, None, None]
    y = jnp.einsum("bhw,bwhv->bhv", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), values, precision="highest")
    return y, cache._replace(position=cache.position + 1)


WORKLOADS = OpWorkloads(op="sliding_window", call=_call, truth=_truth, state=_state, step=_step, step_truth=step_truth)
GROUPS = WORKLOADS.groups(SHAPES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowCase(KernelCase):
    """y, or dq, dk, dv; documents of 37 tokens."""

    OP: ClassVar = OP

    window: int = 64
    d: int = 64
    past: int = 0
    segments: bool = False

    @property
    def problem(self) -> Problem:
        sizes: dict[str, Any] = {"b": self.b, "t": self.t, "h": self.h, "g": self.g, "k": self.d, "v": self.d}
        options: dict[str, Any] = {"past": self.past, "window": self.window, "segments": self.segments}
        return Problem(**sizes, dtype=self.dtype, **options)

    @property
    def words(self) -> list[str]:
        words = [f"t{self.t}", f"w{self.window}", f"h{self.h}", f"g{self.g}", f"d{self.d}", self.dtype]
        return words + [f"past{self.past}"] * (self.past > 0) + ["segments"] * self.segments

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("y",), ("dq", "dk", "dv")

    def inputs(self, seed: int) -> Inputs:
        rng, keys = np.random.default_rng(seed), dataclasses.replace(self, t=self.past + self.t)
        q, k, v = self.tokens(rng, self.h, self.d), *(keys.tokens(rng, self.g, self.d) for _ in range(2))
        ids = np.broadcast_to(np.arange(self.t, dtype=np.int32) // 37, (self.b, self.t)) if self.segments else None
        return Inputs((q, k, v, None, ids), (self.tokens(rng, self.h, self.d),))

    def options(self, variant: Variant) -> dict[str, Any]:
        return {"window": self.window, "scale": self.d**-0.5}

    def reference(self, *operands):
        return (reference.attention(*operands, window=self.window, scale=self.d**-0.5),)


SMALL: list[dict[str, Any]] = [
    {"t": 64},
    {"t": 65, "b": 2},
    {"t": 72, "past": 63},
    {"t": 120, "window": 128},
    {"t": 200, "d": 96},
]
ON_GPU: list[dict[str, Any]] = [{"t": 200, "segments": True}, {"t": 200, "g": 1}]
LONG: list[dict[str, Any]] = [{"t": 8184, "b": 2}, HEADLINE, HEADLINE | {"window": 128}]
CASES = {
    "gpu": both_passes(WindowCase, "mosaic_gpu", *SMALL, *ON_GPU, *LONG),
    "tpu": both_passes(WindowCase, "mosaic_tpu", *SMALL, *LONG),
    "cpu": both_passes(WindowCase, "mosaic_gpu", {"t": 40, "h": 1, "g": 1}),
}
