"""Problem descriptions of the UT transform and of `delta_values`."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from pallas_kernels.delta_chunks.problem import Problem as Recurrence
from pallas_kernels.shape import Call

Decay = Literal["none", "token", "channel"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Call):
    """A call of `ut_transform`, or of `ut_inverse` if k = 0; t is a multiple of `chunk`."""

    DIMENSIONS: ClassVar = ("b", "t", "h", "k", "decay")
    ON_MESH: ClassVar = "sharded_ut_transform"

    h: int
    k: int
    """Width of the keys; 0 for scores."""
    decay: Decay = "none"
    beta: bool = True
    chunk: int = 64

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return self.t // self.chunk

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Keys of length 1, beta in [0, 1], and log decays in [-0.3, 0], if there are any."""
        keys = jax.random.split(jax.random.key(seed), 3)
        tokens = self.b, self.t, self.h
        k = jax.random.normal(keys[0], (*tokens, self.k), jnp.float32)
        k = (k / jnp.linalg.norm(k, axis=-1, keepdims=True)).astype(self.dtype)
        beta = jax.random.uniform(keys[1], tokens, jnp.float32)
        if self.decay == "none":
            return k, beta
        shape = tokens if self.decay == "token" else (*tokens, self.k)
        return k, beta, jax.random.uniform(keys[2], shape, jnp.float32, -0.3, 0.0)

    def forward_bytes(self) -> float:
        """Keys, beta and decays in, mix, read and (with decays) write and keep out, once."""
        numbers = self.k + self.chunk + self._borders() * self.k
        return self.token_bytes(numbers) + self._floats() + self._keeps()

    def backward_bytes(self) -> float:
        """Keys, beta, decays and the cotangents of the outputs and of the keys in, the gradients out, once."""
        cotangents = self.token_bytes(self.chunk + 3 * self.k) + self._keeps()
        return 2 * (self.token_bytes(self.k) + self._floats()) + cotangents

    def _borders(self) -> int:
        """Number of outputs of the size of the keys."""
        return 1 if self.decay == "none" else 2

    def _floats(self) -> float:
        """Bytes of beta and decays."""
        return 4.0 * self.b * self.t * self.h * (1 + {"none": 0, "token": 1, "channel": self.k}[self.decay])

    def _keeps(self) -> float:
        return 0.0 if self.decay == "none" else 4.0 * self.b * self.chunks * self.h * self.k

    def forward_flops(self) -> float:
        """Scores, and substitution with c^3 / 6 multiplications per chunk."""
        return float(self.b * self.t * self.h) * self.chunk * (2 * self.k + self.chunk / 3)

    def backward_flops(self) -> float:
        """Both again, two products of chunks, and two products of each with the keys."""
        return self.forward_flops() + float(self.b * self.t * self.h) * self.chunk * (4 * self.chunk + 4 * self.k)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuesProblem(Problem):
    """A call of `delta_values`."""

    DIMENSIONS: ClassVar = (*Problem.DIMENSIONS, "v")
    ON_MESH: ClassVar = "sharded_delta_values"

    v: int

    @property
    def recurrence(self) -> Recurrence:
        """Problem of the recurrence over chunks."""
        return Recurrence(b=self.b, t=self.t, h=self.h, k=self.k, v=self.v, chunk=self.chunk, dtype=self.dtype)

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Keys, values, beta, and log decays, if there are any."""
        k, *others = super().inputs(seed)
        shape = self.b, self.t, self.h, self.v
        v = jax.random.normal(jax.random.key(seed + 1), shape, jnp.float32).astype(self.dtype)
        return k, v, *others

    def forward_bytes(self) -> float:
        """Keys, values, beta and decays in, y out, once."""
        return self.token_bytes(self.k + 2 * self.v) + self._floats()

    def backward_bytes(self) -> float:
        """The inputs, y, dy and dkeys in, the gradients out, once."""
        return self.token_bytes(3 * self.k + 4 * self.v) + 2 * self._floats()

    def forward_flops(self) -> float:
        return super().forward_flops() + self.recurrence.forward_flops()

    def backward_flops(self) -> float:
        return super().backward_flops() + self.recurrence.backward_flops()
