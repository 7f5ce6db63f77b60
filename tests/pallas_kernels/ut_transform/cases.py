"""Random calls of the UT transform and of `delta_values`."""

import dataclasses
from typing import Literal

import numpy as np

from pallas_kernels.delta_chunks import reference as recurrence
from pallas_kernels.gated_linear_attention.xla import RESET
from pallas_kernels.ut_transform import reference
from pallas_kernels.ut_transform.problem import Decay
from tests.pallas_kernels.calls import RandomCall, rounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(RandomCall):
    """Keys or scores, beta in [0, 2] and log decays, or None.

    repeated: all keys of a head are nearly the same one, beta is nearly 2; documents: of 5 tokens; strong: every third
    token decays by e^-30; weak: a chunk keeps more than half.
    """

    n: int
    h: int = 2
    k: int = 6
    """0: scores."""
    chunk: int = 8
    decay: Decay = "none"
    kind: Literal["random", "repeated", "documents", "strong", "weak", "no beta"] = "random"
    n_operands = 3

    def arrays(self) -> list[np.ndarray | None]:
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
            rounded(x, self.dtype),
            None if self.kind == "no beta" else rounded(beta, "float32"),
            None if self.decay == "none" else rounded(self._decays(rng, tokens), "float32"),
        ]

    def _decays(self, rng, tokens):
        g = -0.3 * rng.random(tokens if self.decay == "token" else (*tokens, self.k))
        if self.kind == "documents":
            g[:, 3::5] = RESET
        if self.kind == "strong":
            g[:, 1::3] *= 100
        return g * 0.03 if self.kind == "weak" else g

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.dtype, "float32", "float32"

    @property
    def cotangent_dtypes(self) -> tuple[str, ...]:
        """Cotangents of mix; with keys, also of read, write, keep and the keys themselves."""
        return self.dtype, self.dtype, self.dtype, "float32", self.dtype

    def cotangents(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed + 1)
        tokens = self.b, self.n * self.chunk, self.h, self.k
        shapes = [(self.b, self.n, self.h, self.chunk, self.chunk), tokens, tokens, (self.b, self.n, self.h, self.k)]
        pairs = list(zip([*shapes, tokens], self.cotangent_dtypes, strict=True))[: 5 if self.k else 1]
        return [rounded(rng.normal(size=shape), dtype) for shape, dtype in pairs]

    def reference(self, x, beta, log_decay):
        if self.k == 0:
            return (reference.inverse(x, beta),)
        return *reference.transform(x, beta, log_decay, self.chunk), x

    def apply(self, function, x, beta, log_decay, **options):
        if self.k == 0:
            return (function(x, beta, **options),)
        return tuple(function(x, beta, log_decay, chunk_size=self.chunk, **options))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuesCall(Call):
    """Keys, values, beta, log decays or None, and a state or None, of `delta_values`."""

    v: int = 5
    chunk: int = 64
    state: bool = True
    n_operands = 5

    def arrays(self) -> list[np.ndarray | None]:
        rng = np.random.default_rng(self.seed + 2)
        k, beta, decay = super().arrays()
        v = rounded(rng.normal(size=(self.b, self.n * self.chunk, self.h, self.v)), self.dtype)
        state = rounded(rng.normal(size=(self.b, self.h, self.k, self.v)), "float32") if self.state else None
        return [k, v, beta, decay, state]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.dtype, self.dtype, "float32", "float32", "float32"

    def cotangents(self) -> list[np.ndarray]:
        """Cotangents of y and of the keys."""
        rng = np.random.default_rng(self.seed + 1)
        shapes = ((self.b, self.n * self.chunk, self.h, width) for width in (self.v, self.k))
        return [rounded(rng.normal(size=shape), self.dtype) for shape in shapes]

    def reference(self, k, v, beta, log_decay, state):
        mix, read, write, keep = reference.transform(k, beta, log_decay, self.chunk)
        return recurrence.recurrence(v, read, write, mix, keep, initial_state=state)[0], k

    def apply(self, function, *operands, **options):
        return tuple(function(*operands[:4], initial_state=operands[4], **options))
