"""Cases of Taylor linear attention and of sliding windows."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.sliding_window import api as window_backends, reference as window_reference
from pallas_kernels.taylor_attention import api as taylor_backends, mosaic_gpu_split, reference as taylor_reference
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import LONG, KernelCase, exactly, interpretation


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

    def program(self, arrays, variant: Variant):
        q, k, v, dy, ds, dz, *state = self.device_arrays(arrays)
        gpu = self.implementation == "mosaic_gpu"
        problem = Problem(b=self.b, t=self.t, h=self.h, g=self.g, k=self.k, v=self.v, dtype=self.dtype)
        segments = mosaic_gpu_split.kernel_segments(problem, mosaic_gpu_split.TRAINING) if gpu else 1
        options = taylor_backends.Options(
            scale=self.k**-0.5, eps=1e-12, normalize=True, return_state=True, save_states=True, chunk_size=None,
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

        return run, (q, k, v, state, dy, TaylorState(ds, dz))

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

    def program(self, arrays, variant: Variant):
        q, k, v, dy = (jnp.asarray(x, self.dtype) for x in arrays)
        ids = None if self.ids() is None else jnp.asarray(self.ids())
        backend = window_backends.BACKENDS[self.implementation]
        options: dict[str, Any] = {"window": self.window, "scale": self.d**-0.5}
        options |= interpretation(self.implementation, variant)

        def run(q, k, v, dy):
            y, lse = backend.forward(q, k, v, None, ids, **options)
            return backend.backward(q, k, v, None, ids, y, lse, dy, **options) if self.backward else [y]

        return run, (q, k, v, dy)

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
