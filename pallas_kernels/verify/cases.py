"""The kernels' cases by platform, in the order in which they are run: smallest first, forward before backward.

Lengths: one chunk of 64; one token more; 72, 120 and 200, where copies end within a chunk; 8184, the same when long.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import backends as delta_backends, reference as delta_reference
from pallas_kernels.delta_chunks.problem import Problem as DeltaProblem
from pallas_kernels.gated_linear_attention import (
    backends as gated_backends,
    reference as gated_reference,
    xla as gated_xla,
)
from pallas_kernels.selective_scan import backends as scan_backends, reference as scan_reference, xla as scan_xla
from pallas_kernels.sliding_window import backends as window_backends, reference as window_reference
from pallas_kernels.taylor_attention import backends as taylor_backends, mosaic_gpu_split, reference as taylor_reference
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.verify.case import Variant

TOLERANCES = {
    ("mosaic_gpu", "bfloat16"): (4e-3, 8e-3),
    ("mosaic_gpu", "float32"): (1e-5, 1e-4),
    ("mosaic_tpu", "bfloat16"): (1e-2, 1e-2),
    ("mosaic_tpu", "float32"): (1e-5, 1e-4),
}
"""(outputs, gradients): bfloat16 rounds inputs of products, features or weights, and results by 2^-9 each."""
LONG = 1000
"""Tokens beyond which only the last head of the last row is checked: the truth has t x t scores in float64."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCase:
    """Shapes and options of a call."""

    implementation: str
    backward: bool
    t: int
    b: int = 1
    h: int = 2
    g: int = 2
    dtype: str = "bfloat16"

    def bounds(self, outputs: tuple[str, ...], gradients: tuple[str, ...]) -> dict[str, float]:
        values, slopes = TOLERANCES[self.implementation, self.dtype]
        return dict.fromkeys(gradients, slopes) if self.backward else dict.fromkeys(outputs, values)

    def rounded(self, x) -> np.ndarray:
        return np.asarray(x, jnp.dtype(self.dtype)).astype(np.float64)

    def device_arrays(self, arrays) -> list[jax.Array]:
        """Tokens in the dtype of the case, states (which lack a time axis) in float32."""
        tokens = (self.b, self.t)
        return [jnp.asarray(x, self.dtype if x.shape[:2] == tokens else jnp.float32) for x in arrays]

    def last(self, x: np.ndarray) -> np.ndarray:
        """Checked values of tokens (b, t, heads, .) or of states (b, heads, ...)."""
        if self.t <= LONG:
            return x
        return x[-1:, :, -1:] if x.shape[:2] == (self.b, self.t) else x[-1:, -1:]

    def checked(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        return [self.last(x) for x in outputs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaylorCase(KernelCase):
    """y and the final state, or all gradients."""

    k: int = 16
    v: int = 64
    decay: bool = False
    state: bool = True
    segments: int | None = None
    """Blocks over which a sequence is split on a GPU; None: the kernel's own choice, 1 for a short one."""

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"h{self.h}", f"g{self.g}", self.dtype]
        words += ["decay"] * self.decay + ["state"] * self.state
        words += [f"segments{self.segments}"] * (self.segments is not None)
        return f"taylor_attention {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        states = ("ds", "dz") if self.state else ()
        return self.bounds(("y", "s", "z"), ("dq", "dk", "dv", *states))

    @property
    def rates(self) -> np.ndarray | None:
        return np.linspace(0.9, 1.0, self.h).astype(np.float32) if self.decay else None

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[q, k, v, dy, ds, dz(, s, z)]: the state of 40 earlier tokens; cotangents of states do not drown dy."""
        rng = np.random.default_rng(seed)
        widths = ((self.h, self.k), (self.g, self.k), (self.g, self.v), (self.h, self.v))
        tokens = [self.rounded(rng.standard_normal((self.b, self.t, *x))) for x in widths]
        keys, (first, second) = rng.standard_normal((self.b, 40, self.h, self.k)), np.triu_indices(self.k)
        past = np.concatenate([np.ones_like(keys[..., :1]), keys, keys[..., first] * keys[..., second]], axis=-1)
        values = rng.standard_normal((self.b, 40, self.h, self.v))
        s, z = np.einsum("bjhf,bjhv->bhfv", past, values), past.sum(1)
        states = [0.02 * rng.standard_normal(s.shape), 0.02 * rng.standard_normal(z.shape)] + [s, z] * self.state
        return tokens + [np.asarray(np.float32(x), np.float64) for x in states]

    def compiled(self, arrays, variant: Variant):
        q, k, v, dy, ds, dz, *state = self.device_arrays(arrays)
        gpu = self.implementation == "mosaic_gpu"
        problem = Problem(b=self.b, t=self.t, h=self.h, g=self.g, k=self.k, v=self.v, dtype=self.dtype)
        segments = mosaic_gpu_split.kernel_segments(problem, mosaic_gpu_split.TRAINING) if gpu else 1
        options = taylor_backends.Options(
            scale=self.k**-0.5, eps=1e-12, normalize=True, return_state=True, return_den=True, chunk_size=None,
            kernel_segments=variant.segments or self.segments or segments,
        )  # fmt: skip
        backend, how = taylor_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        rates = None if self.rates is None else jnp.asarray(self.rates)

        def run(q, k, v, state, dy, dstate):
            tokens = (q, k, v, TaylorState(*state) if state else None, rates, None)
            y, last, saved = backend.forward(*tokens, options, **how)
            if not self.backward:
                return [y, *last]
            *gradients, start = backend.backward(*tokens, y, saved, dy, dstate, options, **how)
            return [*gradients, *(start or ())]

        return compile_ahead(run, q, k, v, state, dy, TaylorState(ds, dz))

    def truth(self, arrays):
        rates = self.rates if self.rates is None or self.t <= LONG else self.rates[-1:]
        form = functools.partial(taylor_reference.quadratic, scale=self.k**-0.5, eps=1e-12, normalize=True, decay=rates)

        def run(q, k, v, dy, ds, dz, *state):
            def outputs(q, k, v, *state):
                y, last = form(q, k, v, initial_state=TaylorState(*state) if state else None)
                return [y, *last]

            found, pull_back = jax.vjp(outputs, q, k, v, *state)
            return pull_back([dy, ds, dz]) if self.backward else found

        return exactly(run, [self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowCase(KernelCase):
    """y and lse, or dq, dk, dv."""

    window: int = 64
    d: int = 64
    past: int = 0
    segments: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"w{self.window}", f"h{self.h}", f"g{self.g}", f"d{self.d}", self.dtype]
        words += [f"past{self.past}"] * (self.past > 0) + ["segments"] * self.segments
        return f"sliding_window {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y",), ("dq", "dk", "dv"))

    def ids(self) -> np.ndarray | None:
        ids = np.arange(self.t) // 37
        return np.broadcast_to(ids, (self.b, self.t)).astype(np.int32) if self.segments else None

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[q, k, v, dy]."""
        rng = np.random.default_rng(seed)
        lengths = ((self.t, self.h), (self.past + self.t, self.g), (self.past + self.t, self.g), (self.t, self.h))
        return [self.rounded(rng.standard_normal((self.b, *x, self.d))) for x in lengths]

    def compiled(self, arrays, variant: Variant):
        q, k, v, dy = (jnp.asarray(x, self.dtype) for x in arrays)
        ids = None if self.ids() is None else jnp.asarray(self.ids())
        backend = window_backends.BACKENDS[self.implementation]
        options: dict[str, Any] = {"window": self.window, "scale": self.d**-0.5}
        options |= interpretation(self.implementation, variant)

        def run(q, k, v, dy):
            y, lse = backend.forward(q, k, v, None, ids, **options)
            return backend.backward(q, k, v, None, ids, y, lse, dy, **options) if self.backward else [y]

        return compile_ahead(run, q, k, v, dy)

    def last(self, x: np.ndarray) -> np.ndarray:
        return x if self.t <= LONG else x[-1:, :, -1:]

    def truth(self, arrays):
        ids = self.ids()
        ids = ids[-1:] if ids is not None and self.t > LONG else ids

        def run(q, k, v, dy):
            form = functools.partial(window_reference.attention, window=self.window, scale=self.d**-0.5)
            y, pull_back = jax.vjp(lambda q, k, v: form(q, k, v, None, ids), q, k, v)
            return pull_back(dy) if self.backward else [y]

        return exactly(run, [self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedCase(KernelCase):
    """y and the final state, or all gradients; q and k have g heads, v has h."""

    k: int = 64
    v: int = 64
    documents: bool = False
    channel: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"h{self.h}", f"g{self.g}", f"k{self.k}", f"v{self.v}", self.dtype]
        words += ["channel"] * self.channel + ["documents"] * self.documents
        return f"gated_linear_attention {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        bounds = self.bounds(("y", "s"), ("dq", "dk", "dv", "dlog_decay", "ds"))
        return {name: max(bound, 8e-3) if self.dtype == "bfloat16" else bound for name, bound in bounds.items()}

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[q, k, v, dy, log_decay, state, dstate]; every third token decays little, documents are of 37 tokens."""
        rng = np.random.default_rng(seed)
        widths = ((self.g, self.k), (self.g, self.k), (self.h, self.v), (self.h, self.v))
        tokens = [self.rounded(rng.standard_normal((self.b, self.t, *x))) for x in widths]
        tokens[1] = self.rounded(tokens[1] * self.k**-0.5)
        shape = (self.b, self.t, self.h, *[self.k] * self.channel)
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, 0.5)
        decay = -rng.random(shape) * size.reshape(-1, *[1] * (len(shape) - 2))
        if self.documents:
            decay[:, 37::37] = gated_xla.RESET
        states = [0.3 * rng.standard_normal((self.b, self.h, self.k, self.v)) for _ in range(2)]
        return tokens + [np.asarray(np.float32(x), np.float64) for x in (decay, *states)]

    def compiled(self, arrays, variant: Variant):
        q, k, v, dy = (jnp.asarray(x, self.dtype) for x in arrays[:4])
        decay, state, dstate = (jnp.asarray(x, jnp.float32) for x in arrays[4:])
        backend, how = gated_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = gated_backends.Options(return_state=True, save_states=self.implementation)

        def run(q, k, v, decay, state, dy, dstate):
            tokens = (q, k, v, decay, state)
            y, last, saved = backend.forward(*tokens, options=options, **how)
            return backend.backward(*tokens, saved, dy, dstate, options=options, **how) if self.backward else [y, last]

        return compile_ahead(run, q, k, v, decay, state, dy, dstate)

    def truth(self, arrays):
        def run(q, k, v, dy, decay, state, dstate):
            form = gated_reference.recurrence
            outputs, pull_back = jax.vjp(lambda *x: form(*x[:4], initial_state=x[4]), q, k, v, decay, state)
            return pull_back((dy, dstate)) if self.backward else outputs

        return exactly(run, [self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanCase(KernelCase):
    """y and the final state, or all gradients; that of a, a sum over rows, where there is one row."""

    h: int = 1
    g: int = 1
    d: int = 256
    n: int = 16
    delta_dtype: str = "float32"
    documents: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"d{self.d}", f"n{self.n}", self.dtype, f"delta_{self.delta_dtype}"]
        words += ["documents"] * self.documents
        return f"selective_scan {self.implementation} {kind} {'_'.join(words)}"

    @property
    def gradients(self) -> tuple[str, ...]:
        return tuple(x for x in ("dx", "ddelta", "da", "db", "dc", "dstate") if x != "da" or self.b == 1)

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y", "state"), self.gradients)

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[x, delta, a, b, c, state, dy, dstate]; every third token decays little, every 13th not at all."""
        rng = np.random.default_rng(seed)
        x, dy = (self.rounded(rng.standard_normal((self.b, self.t, self.d))) for _ in range(2))
        b, c = (self.rounded(rng.standard_normal((self.b, self.t, self.n))) for _ in range(2))
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, 0.5) * (np.arange(self.t) % 13 != 12)
        delta = rng.random((self.b, self.t, self.d)) * size[:, None]
        delta = np.asarray(np.asarray(delta, jnp.dtype(self.delta_dtype)), np.float64)
        a = np.asarray(-2 * rng.random((self.d, self.n)), np.float32)
        state, dstate = (np.asarray(rng.standard_normal((self.b, self.d, self.n)), np.float32) for _ in range(2))
        a, state, dstate = (np.asarray(x, np.float64) for x in (a, state, dstate))
        return [x, delta, a, b, c, state, dy, dstate]

    def keep(self) -> jax.Array | None:
        """Documents are of 37 tokens."""
        ids = np.broadcast_to(np.arange(self.t, dtype=np.int32) // 37, (self.b, self.t))
        return scan_xla.keep_of(jnp.asarray(ids) if self.documents else None)

    def compiled(self, arrays, variant: Variant):
        dtypes = (self.dtype, self.delta_dtype, "float32", self.dtype, self.dtype, "float32", self.dtype, "float32")
        arrays = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        backend, how = scan_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = scan_backends.Options(return_state=True, save_states=self.implementation)

        def run(x, delta, a, b, c, state, dy, dstate, keep):
            operands = (x, delta, a, b, c, keep, state)
            y, last, saved = backend.forward(*operands, options=options, **how)
            if not self.backward:
                return [y, last]
            found = backend.backward(*operands, saved, dy, dstate, options=options, **how)
            return [x for i, x in enumerate(found) if i != 2 or self.b == 1]

        return compile_ahead(run, *arrays, self.keep())

    def last(self, x: np.ndarray) -> np.ndarray:
        return x[-1:] if self.t > LONG and len(x) == self.b else x

    def truth(self, arrays):
        def run(x, delta, a, b, c, state, dy, dstate):
            def form(x, delta, a, b, c, state):
                if self.t > LONG:
                    return scan_reference.in_blocks(x, delta, a, b, c, initial_state=state)
                ids = jnp.arange(self.t, dtype=jnp.int32)[None] // 37 if self.documents else None
                return scan_reference.recurrence(x, delta, a, b, c, initial_state=state, segment_ids=ids)

            outputs, pull_back = jax.vjp(form, x, delta, a, b, c, state)
            if not self.backward:
                return outputs
            return [x for i, x in enumerate(pull_back((dy, dstate))) if i != 2 or self.b == 1]

        return exactly(run, [x if x.shape == (self.d, self.n) else self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaCase(KernelCase):
    """y and the final state, or all gradients; chunks of 64 tokens."""

    k: int = 64
    v: int = 64

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"h{self.h}", f"k{self.k}", f"v{self.v}", self.dtype]
        return f"delta_chunks {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y", "state"), ("dx", "dread", "dwrite", "dmix", "dkeep", "dstate"))

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[x, read, write, mix, keep, state, dy, dstate]."""
        rng = np.random.default_rng(seed)
        x, dy = (self.rounded(rng.standard_normal((self.b, self.t, self.h, self.v))) for _ in range(2))
        given = DeltaProblem(b=self.b, t=self.t, h=self.h, k=self.k, v=self.v, dtype=self.dtype).inputs(seed)
        others = [np.asarray(z, np.float64) for z in given[1:]]
        states = (rng.standard_normal((self.b, self.h, self.k, self.v)) for _ in range(2))
        state, dstate = (np.asarray(np.asarray(z, np.float32), np.float64) for z in states)
        return [x, *others, state, dy, dstate]

    def compiled(self, arrays, variant: Variant):
        dtypes = (*[self.dtype] * 4, "float32", "float32", self.dtype, "float32")
        arrays = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
        backend, how = delta_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = delta_backends.Options(return_state=True, save_states=self.backward)

        def run(*arrays):
            *operands, dy, dstate = arrays
            y, last, states = backend.forward(*operands, options=options, **how)
            if not self.backward:
                return [y, last]
            return backend.backward(*operands, y, states, dy, dstate, options=options, **how)

        return compile_ahead(run, *arrays)

    def last(self, x: np.ndarray) -> np.ndarray:
        if self.t <= LONG or len(x) != self.b:
            return x
        return x[-1:, -1:] if x.shape == (self.b, self.h, self.k, self.v) else x[-1:, :, -1:]

    def truth(self, arrays):
        def run(*arrays):
            *operands, dy, dstate = arrays
            form = delta_reference.recurrence
            outputs, pull_back = jax.vjp(lambda *x: form(*x[:5], initial_state=x[5]), *operands)
            return pull_back((dy, dstate)) if self.backward else outputs

        return exactly(run, [self.last(x) for x in arrays])


def interpretation(implementation: str, variant: Variant) -> dict[str, Any]:
    """Options that make a backend's kernels run on a CPU."""
    if not variant.interpret:
        return {}
    if implementation == "mosaic_tpu":
        return {"interpret": True}
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return {"interpret": plgpu.InterpretGPUParams(detect_races=True)}


def compile_ahead(run, *arrays):
    program = jax.jit(run).lower(*arrays).compile()
    return lambda: jax.block_until_ready(jax.tree.leaves(program(*arrays)))


def exactly(run, arrays) -> list[np.ndarray]:
    """run(*arrays) in float64 on the host."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(x) for x in jax.jit(run)(*(jnp.asarray(x, jnp.float64) for x in arrays))]


def _taylor(*, gpu: bool) -> list[dict]:
    small = [{"t": 64, "state": False}, {"t": 64}, {"t": 65}, {"t": 72, "g": 1}, {"t": 120, "decay": True}]
    small += [{"t": 200, "g": 1, "decay": True}]
    if gpu:
        small += [{"t": 200, "segments": 2, "state": False}, {"t": 200, "segments": 2, "decay": True}]
    return [*small, {"t": 8184, "b": 2}, {"t": 8192, "b": 4, "h": 16, "g": 16}]


def _window(*, past: int, gpu: bool) -> list[dict]:
    small = [{"t": 64}, {"t": 65}, {"t": 72, "past": past}, {"t": 120, "window": 128}, {"t": 200, "d": 96}]
    if gpu:
        small += [{"t": 200, "segments": True}, {"t": 200, "g": 1}]
    headline = {"t": 8192, "b": 4, "h": 16, "g": 16}
    return [*small, {"t": 8184, "b": 2}, headline, headline | {"window": 128}]


def _gated() -> list[dict]:
    small = [{"t": 64}, {"t": 65}, {"t": 72, "g": 1, "k": 128}, {"t": 200, "documents": True, "v": 128, "k": 128}]
    long = [{"t": 8184, "b": 2}, {"t": 8192, "b": 4, "h": 16, "g": 16}]
    channel = [{"t": 65}, {"t": 200, "documents": True, "v": 128, "k": 128}, *long]
    return [*small, *long, *[x | {"channel": True} for x in channel]]


def _scan() -> list[dict]:
    small = [{"t": 64}, {"t": 65, "n": 8}, {"t": 72, "delta_dtype": "bfloat16"}, {"t": 200, "documents": True}]
    return [*small, {"t": 8184, "d": 512}, {"t": 8192, "b": 4, "d": 1024}]


def _delta() -> list[dict]:
    small = [{"t": 64}, {"t": 128, "k": 128}, {"t": 192, "k": 128, "v": 128}, {"t": 320, "v": 192}, {"t": 64, "v": 256}]
    headline = {"t": 8192, "b": 4, "h": 16, "g": 16}
    return [*small, headline, headline | {"k": 128, "v": 128}]


def _ordered(implementation: str) -> list[KernelCase]:
    gpu = implementation == "mosaic_gpu"
    cases: list[KernelCase] = []
    for backward in (False, True):
        both: dict[str, Any] = {"implementation": implementation, "backward": backward}
        cases += [TaylorCase(**both, **x) for x in _taylor(gpu=gpu)]
        cases += [WindowCase(**both, **x) for x in _window(past=63, gpu=gpu)]
        cases += [GatedCase(**both, **x) for x in _gated()]
        cases += [ScanCase(**both, **x) for x in _scan()]
        cases += [DeltaCase(**both, **x) for x in _delta() if gpu]
    return sorted(cases, key=lambda case: case.b * case.h * case.t)  # stable: forward before backward


def _interpreted(backward: bool) -> list[KernelCase]:
    """A short chunk on a GPU, whose interpreter is slow; a chunk and a token on a TPU."""
    gpu: dict[str, Any] = {"implementation": "mosaic_gpu", "backward": backward, "t": 40, "h": 1, "g": 1}
    tpu = gpu | {"implementation": "mosaic_tpu", "dtype": "float32", "t": 65, "k": 8, "v": 16}
    wide: dict[str, Any] = gpu | {"implementation": "mosaic_tpu", "dtype": "float32", "n": 8}
    scans = [ScanCase(**gpu, d=64), ScanCase(**wide)]
    whole: dict[str, Any] = gpu | {"t": 64}
    cases: list[KernelCase] = [WindowCase(**gpu), TaylorCase(**tpu), TaylorCase(**gpu), GatedCase(**gpu), *scans]
    return [*cases, DeltaCase(**whole)]


CASES = {
    "gpu": _ordered("mosaic_gpu"),
    "tpu": _ordered("mosaic_tpu"),
    "cpu": [*_interpreted(False), *_interpreted(True)],
}
"""By the platform that JAX finds; on a CPU the kernels are interpreted."""
