"""Cases of the UT transform of delta rules, and of what their tokens write."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import reference as recurrence
from pallas_kernels.ut_transform import api as backends, reference, values_api as values_backends
from pallas_kernels.ut_transform.problem import Decay, ValuesProblem
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import LONG, KernelCase, exactly, interpretation


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformCase(KernelCase):
    """mix, read, write and keep, those that there are, or all gradients; k = 0: of scores, with rates or without."""

    k: int = 64
    decay: Decay = "none"
    rates: bool = True
    repeated: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = [f"t{self.t}", f"b{self.b}", f"h{self.h}", f"k{self.k}", self.decay, self.dtype]
        words += ["no_rates"] * (not self.rates) + ["repeated"] * self.repeated
        return f"ut_transform {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        """Gradients with keys that repeat are products of rounded inverses, whose terms cancel."""
        outputs = ("mix", "read", "write", "keep")[: 0 if self.k == 0 else 2 if self.decay == "none" else 4] or ("mix",)
        gradients = "dx", *["dbeta"] * self.rates, *["dlog_decay"] * (self.decay != "none")
        bounds = self.bounds(outputs, gradients)
        return dict.fromkeys(bounds, 0.04) if self.repeated and self.backward else bounds

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[keys or scores, beta, log decays, cotangents of mix, read, write, keep, keys], those that there are."""
        rng = np.random.default_rng(seed)
        tokens, n = (self.b, self.t, self.h), self.t // 64
        mixes = (self.b, n, self.h, 64, 64)
        x = rng.standard_normal((*tokens, self.k) if self.k else mixes)
        if self.repeated:
            x = 0.1 * x + x[:, :1]
        x = x / np.linalg.norm(x, axis=-1, keepdims=True) if self.k else 0.1 * x
        arrays = [self.rounded(x)]
        if self.rates:
            arrays.append(2 - 0.02 * rng.random(tokens) if self.repeated else 2 * rng.random(tokens))
        if self.decay != "none":
            arrays.append(-0.3 * rng.random(tokens if self.decay == "token" else (*tokens, self.k)))
        arrays.append(self.rounded(rng.standard_normal(mixes)))
        if self.k:
            arrays += [self.rounded(rng.standard_normal((*tokens, self.k))) for _ in range(3)]
            keep = [rng.standard_normal((self.b, n, self.h, self.k))] * (self.decay != "none")
            arrays = [*arrays[:-1], *keep, arrays[-1]]
        return [np.asarray(np.asarray(z, np.float32), np.float64) for z in arrays]

    def _parts(self, arrays):
        """x, beta, log decays; cotangents of mix, read, write, keep and keys: None for what there is not."""
        rest = list(arrays)
        x, beta = rest.pop(0), rest.pop(0) if self.rates else None
        decay, dmix = rest.pop(0) if self.decay != "none" else None, rest.pop(0)
        dread, dwrite = (rest.pop(0) if self.k else None for _ in range(2))
        dkeep, dkeys = rest.pop(0) if self.decay != "none" else None, rest.pop(0) if self.k else None
        return (x, beta, decay), (dmix, dread, dwrite, dkeep, dkeys)

    def program(self, arrays, variant: Variant):
        inputs, cotangents = self._parts(arrays)
        dtypes = self.dtype, "float32", "float32", self.dtype, self.dtype, self.dtype, "float32", self.dtype
        cast = [None if z is None else jnp.asarray(z, d) for z, d in zip((*inputs, *cotangents), dtypes, strict=True)]
        backend, how = backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)

        def run(*arrays):
            if not self.backward:
                return backend.forward(*arrays[:3], chunk=64, **how)[: len(self.tolerances)]
            found = backend.backward(*arrays[:3], None, *arrays[3:], chunk=64, **how)
            return [z for z in found if z is not None]

        return run, cast

    def last(self, x: np.ndarray) -> np.ndarray:
        """The last head of the last row where a call is long, else all; every array has heads as its third axis."""
        return x if self.t <= LONG else x[-1:, :, -1:]

    def truth(self, arrays):
        def run(*arrays):
            inputs, cotangents = self._parts(arrays)

            def form(x, beta, decay):
                if self.k == 0:
                    return (reference.inverse(x, beta),)
                mix, read, write, keep = reference.transform(x, beta, decay, 64)
                return (mix, read, write, keep, x) if self.decay != "none" else (mix, read, write, x)

            outputs, pull_back = jax.vjp(form, *inputs)
            if not self.backward:
                return outputs[: len(self.tolerances)]
            return [z for z in pull_back(tuple(z for z in cotangents if z is not None)) if z is not None]

        return exactly(run, [self.last(x) for x in arrays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuesCase(KernelCase):
    """Values that tokens write, or all gradients. weak: decays of which a chunk keeps more than half."""

    k: int = 64
    v: int = 64
    decay: Decay = "none"
    weak: bool = False

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        words = ["values", f"t{self.t}", f"b{self.b}", f"h{self.h}", f"k{self.k}", f"v{self.v}", self.decay, self.dtype]
        words += ["weak"] * self.weak
        return f"ut_transform {self.implementation} {kind} {'_'.join(words)}"

    @property
    def tolerances(self) -> dict[str, float]:
        return self.bounds(("y",), ("dk", "dv", "dbeta", *["dlog_decay"] * (self.decay != "none"), "dstate"))

    def inputs(self, seed: int) -> list[np.ndarray]:
        """[k, v, beta, log decays if any, state, dy, dkeys]; values and states have entries of 1."""
        rng = np.random.default_rng(seed)
        size = {"b": self.b, "t": self.t, "h": self.h, "k": self.k, "v": self.v, "decay": self.decay}
        given = [np.asarray(x, np.float64) for x in ValuesProblem(**size, dtype=self.dtype).inputs(seed)]
        if self.weak:
            given[3] = np.asarray(np.float32(0.03 * given[3]), np.float64)
        state = np.asarray(np.float32(rng.standard_normal((self.b, self.h, self.k, self.v))), np.float64)
        cotangents = [self.rounded(rng.standard_normal(x.shape)) for x in (given[1], given[0])]
        return [*given, state, *cotangents]

    def _parts(self, arrays):
        """k, v, beta, log decays or None, state; cotangents of y and of the keys."""
        *given, state, dy, dkeys = arrays
        return (*given, *[None] * (4 - len(given)), state), (dy, dkeys)

    def program(self, arrays, variant: Variant):
        inputs, cotangents = self._parts(arrays)
        dtypes = self.dtype, self.dtype, "float32", "float32", "float32", self.dtype, self.dtype
        cast = [None if z is None else jnp.asarray(z, d) for z, d in zip((*inputs, *cotangents), dtypes, strict=True)]
        backend, how = values_backends.BACKENDS[self.implementation], interpretation(self.implementation, variant)
        options = values_backends.Options(return_state=False, save_states=self.backward)

        def run(*arrays):
            *inputs, dy, dkeys = arrays
            y, _, kept = backend.forward(*inputs, options=options, **how)
            if not self.backward:
                return [y]
            found = backend.backward(*inputs, y, kept, dy, dkeys, options=options, **how)
            return [z for z in found if z is not None]

        return run, cast

    def last(self, x: np.ndarray) -> np.ndarray:
        if self.t <= LONG:
            return x
        return x[-1:, -1:] if x.shape == (self.b, self.h, self.k, self.v) else x[-1:, :, -1:]

    def truth(self, arrays):
        def run(*arrays):
            inputs, cotangents = self._parts(arrays)

            def form(k, v, beta, decay, state):
                mix, read, write, keep = reference.transform(k, beta, decay, 64)
                return recurrence.recurrence(v, read, write, mix, keep, initial_state=state)[0], k

            outputs, pull_back = jax.vjp(form, *inputs)
            return [z for z in pull_back(cotangents) if z is not None] if self.backward else outputs[:1]

        return exactly(run, [self.last(x) for x in arrays])
