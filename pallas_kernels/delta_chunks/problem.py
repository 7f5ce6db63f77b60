"""Problem descriptions of the recurrence over chunks and the general delta rule."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels.shape import Call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Call):
    """A call of `delta_chunks`; t is a multiple of `chunk`."""

    DIMENSIONS: ClassVar = ("b", "t", "h", "k", "v", "chunk")
    ON_MESH: ClassVar = "sharded_delta_chunks"

    h: int
    k: int
    v: int
    chunk: int = 64

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return self.t // self.chunk

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """x, read, write, mix and keep of `delta_chunks`, scaled so that states stay as large as x."""
        keys = jax.random.split(jax.random.key(seed), 5)
        tokens, chunks = (self.b, self.t, self.h), (self.b, self.chunks, self.h)
        x = jax.random.normal(keys[0], (*tokens, self.v), jnp.float32)
        read, write = (
            jax.random.normal(key, (*tokens, self.k), jnp.float32) * factor * (self.k * self.chunk) ** -0.25
            for key, factor in zip(keys[1:3], (-0.5, 0.5), strict=True)
        )
        mix = jax.random.normal(keys[3], (*chunks, self.chunk, self.chunk), jnp.float32) / self.chunk
        mix = jnp.tril(mix, -1) + jnp.eye(self.chunk)[None, None, None]
        keep = jax.random.uniform(keys[4], (*chunks, self.k), jnp.float32, 0.5, 1.0)
        x, read, write, mix = (z.astype(self.dtype) for z in (x, read, write, mix))
        return x, read, write, mix, keep

    def forward_bytes(self) -> float:
        """x, read, write, mix and keep in, y out, once."""
        return self.token_bytes(2 * self.k + 2 * self.v + self.chunk) + self._keeps()

    def backward_bytes(self) -> float:
        """The inputs, y and dy in, the gradients out, once."""
        return self.token_bytes(4 * self.k + 4 * self.v + 2 * self.chunk) + 2 * self._keeps()

    def _keeps(self) -> float:
        return 4.0 * self.b * self.chunks * self.h * self.k

    def forward_flops(self) -> float:
        """Products read S, write^T y and mix (x + read S), with all 64 x 64 entries."""
        return float(self.b * self.t * self.h) * (4 * self.k + 2 * self.chunk) * self.v

    def backward_flops(self) -> float:
        """The recurrence of the cotangents, dread, dwrite, write U, read S, and dmix."""
        return self.forward_flops() + float(self.b * self.t * self.h) * (8 * self.k + 2 * self.chunk) * self.v


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneralProblem(Call):
    """A call of `general_delta_rule`."""

    ON_MESH: ClassVar = "it within jax.shard_map"

    h: int
    k: int
    v: int

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """q, k, v, u, z and log_decay as in RWKV-7: u of length 1, z = -a u with rates a in [0, 1]."""
        keys = jax.random.split(jax.random.key(seed), 6)
        tokens = (self.b, self.t, self.h)
        q, k, u = (jax.random.normal(key, (*tokens, self.k), jnp.float32) for key in keys[:3])
        v = jax.random.normal(keys[3], (*tokens, self.v), jnp.float32)
        u = u / jnp.linalg.norm(u, axis=-1, keepdims=True)
        z = -u * jax.random.uniform(keys[4], u.shape)
        log_decay = -0.6 * jax.random.uniform(keys[5], u.shape) ** 3
        return *(x.astype(self.dtype) for x in (q, k * self.k**-0.5, v, u, z)), log_decay

    def forward_bytes(self) -> float:
        """q, k, v, u, z and float32 decays in, y out, once."""
        return self.token_bytes(4 * self.k + 2 * self.v) + self._decays()

    def backward_bytes(self) -> float:
        """The inputs and dy in, the gradients out, once."""
        return self.token_bytes(8 * self.k + 3 * self.v) + 2 * self._decays()

    def _decays(self) -> float:
        return 4.0 * self.b * self.t * self.h * self.k

    def forward_flops(self) -> float:
        """Products of tokens within chunks of 64, of their weights, and with the state; all entries counted."""
        return float(self.b * self.t * self.h) * 2 * (4 * 64 * self.k + 4 * 64 * self.v + 4 * self.k * self.v)

    def backward_flops(self) -> float:
        """Recomputation, the recurrence of the cotangents, and gradients of all operands."""
        each = 4 * 64 * self.k + (2 * 64 + 3 * self.k) * self.v + (2 * 64 + self.k) * self.v
        each += 4 * 64 * self.v + 8 * 64 * self.k + 4 * self.k * self.v
        return float(self.b * self.t * self.h) * 2 * each
