"""Random calls of the UT transform, and their float64 truth with gradients: `reference.py`."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.delta_chunks import reference as recurrence
from pallas_kernels.gated_linear_attention.xla import RESET
from pallas_kernels.ut_transform import reference
from pallas_kernels.ut_transform.problem import Decay


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and kinds of arrays."""

    n: int
    b: int = 2
    h: int = 2
    k: int = 6
    """0: scores."""
    chunk: int = 8
    decay: Decay = "none"
    kind: Literal["random", "repeated", "documents", "strong", "weak", "no beta"] = "random"
    dtype: str = "float32"
    seed: int = 0

    def arrays(self) -> list[np.ndarray | None]:
        """[keys or scores, beta, log decays] in float64, of numbers that their dtypes hold, or None.

        beta lies in [0, 2], 0 and 2 included. repeated: all keys of a head are nearly the same one, beta is nearly 2;
        documents: of 5 tokens; strong: every third token decays by e^-30; weak: a chunk keeps more than half."""
        rng = np.random.default_rng(self.seed)
        tokens = self.b, self.n * self.chunk, self.h
        if self.k == 0:
            x = rng.normal(size=(self.b, self.n, self.h, self.chunk, self.chunk)) * self.chunk**-0.5
        else:
            x = rng.normal(size=(*tokens, self.k))
            x = x * 0.1 + x[:, :1] if self.kind == "repeated" else x
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
        beta = np.clip(rng.uniform(-0.2, 2.2, size=tokens), 0, 2)
        beta = 2 - 0.02 * beta if self.kind == "repeated" else beta
        return [
            _rounded(x, self.dtype),
            None if self.kind == "no beta" else _rounded(beta, "float32"),
            None if self.decay == "none" else _rounded(self._decays(rng, tokens), "float32"),
        ]

    def _decays(self, rng, tokens):
        g = -0.3 * rng.random(tokens if self.decay == "token" else (*tokens, self.k))
        if self.kind == "documents":
            g[:, 3::5] = RESET
        if self.kind == "strong":
            g[:, 1::3] *= 100
        return g * 0.03 if self.kind == "weak" else g

    def cotangents(self) -> list[np.ndarray]:
        """Of mix, and of keys also of read, write, keep and the keys themselves."""
        rng = np.random.default_rng(self.seed + 1)
        tokens = self.b, self.n * self.chunk, self.h, self.k
        shapes = [(self.b, self.n, self.h, self.chunk, self.chunk), tokens, tokens, (self.b, self.n, self.h, self.k)]
        dtypes = [self.dtype, self.dtype, self.dtype, "float32", self.dtype]
        pairs = list(zip([*shapes, tokens], dtypes, strict=True))[: 5 if self.k else 1]
        return [_rounded(rng.normal(size=shape), dtype) for shape, dtype in pairs]


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(np.asarray(x, jnp.dtype(dtype)), np.float64)


def arrays_of(call: Call):
    """Arrays and cotangents in the dtypes of the call."""
    dtypes = call.dtype, "float32", "float32"
    arrays = [
        None if x is None else np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.arrays(), dtypes, strict=True)
    ]
    wide = [call.dtype] * 3 + ["float32", call.dtype]
    return arrays, [np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.cotangents(), wide, strict=False)]


def evaluate(function, arrays, cotangents):
    """(outputs, gradients of every array but None) of function(x, beta, log_decay) -> a tuple."""

    @jax.jit
    def run(arrays, cotangents):
        out, pull_back = jax.vjp(lambda *arrays: tuple(function(*arrays)), *arrays)
        return out, pull_back(tuple(cotangents))

    out, gradients = run(tuple(arrays), tuple(cotangents))
    return [np.asarray(x) for x in out], [np.asarray(x) for x in gradients if x is not None]


def truth(call: Call):
    """Outputs and gradients in float64."""

    def run(x, beta, log_decay):
        if call.k == 0:
            return (reference.inverse(x, beta),)
        return *reference.transform(x, beta, log_decay, call.chunk), x

    with jax.enable_x64(True):
        arrays = [None if x is None else jnp.asarray(x, jnp.float64) for x in call.arrays()]
        return evaluate(run, arrays, [jnp.asarray(x, jnp.float64) for x in call.cotangents()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuesCall(Call):
    """A call of `delta_values`."""

    v: int = 5
    chunk: int = 64
    state: bool = True

    def arrays(self) -> list[np.ndarray | None]:
        """[keys, values, beta, log decays or None, state or None]."""
        rng = np.random.default_rng(self.seed + 2)
        k, beta, decay = super().arrays()
        v = _rounded(rng.normal(size=(self.b, self.n * self.chunk, self.h, self.v)), self.dtype)
        state = _rounded(rng.normal(size=(self.b, self.h, self.k, self.v)), "float32") if self.state else None
        return [k, v, beta, decay, state]

    def cotangents(self) -> list[np.ndarray]:
        """Of y and of the keys."""
        rng = np.random.default_rng(self.seed + 1)
        shapes = ((self.b, self.n * self.chunk, self.h, width) for width in (self.v, self.k))
        return [_rounded(rng.normal(size=shape), self.dtype) for shape in shapes]


def values_arrays_of(call: ValuesCall):
    """Arrays and cotangents in the dtypes of the call."""
    dtypes = call.dtype, call.dtype, "float32", "float32", "float32"
    arrays = [
        None if x is None else np.asarray(x, jnp.dtype(dtype)) for x, dtype in zip(call.arrays(), dtypes, strict=True)
    ]
    return arrays, [np.asarray(x, jnp.dtype(call.dtype)) for x in call.cotangents()]


def values_truth(call: ValuesCall):
    """Outputs and gradients in float64."""

    def run(k, v, beta, log_decay, state):
        mix, read, write, keep = reference.transform(k, beta, log_decay, call.chunk)
        return recurrence.recurrence(v, read, write, mix, keep, initial_state=state)[0], k

    with jax.enable_x64(True):
        arrays = [None if x is None else jnp.asarray(x, jnp.float64) for x in call.arrays()]
        return evaluate(run, arrays, [jnp.asarray(x, jnp.float64) for x in call.cotangents()])
