"""Problem description of gated linear attention."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Shape):
    """A call of gated linear attention: g heads of queries and keys, h heads of values, float32 log decays."""

    ON_MESH: ClassVar = "sharded_gated_linear_attention"

    channel: bool = False
    """Whether there is a decay per channel of the keys."""

    def sizes(self) -> dict[str, int | str]:
        """Sizes by dimension, for tables."""
        return super().sizes() | {"decay": "channel" if self.channel else "head"}

    @property
    def decays(self) -> int:
        """Decays per token."""
        return self.h * (self.k if self.channel else 1)

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal q, k / sqrt(k), v, and log decays for lifetimes of 4 to 400 tokens."""
        keys = jax.random.split(jax.random.key(seed), 4)
        shapes = [(self.kv_heads, self.k), (self.kv_heads, self.k), (self.h, self.v)]
        q, k, v = (
            (jax.random.normal(key, (self.b, self.t, *shape), jnp.float32) * factor).astype(self.dtype)
            for key, shape, factor in zip(keys[:3], shapes, (1.0, self.k**-0.5, 1.0), strict=True)
        )
        shape = (self.b, self.t, self.h, self.k) if self.channel else (self.b, self.t, self.h)
        return q, k, v, -jnp.exp(jax.random.uniform(keys[3], shape, jnp.float32, -6.0, -1.4))

    def forward_bytes(self) -> float:
        """q, k, v and decays in, y out, once."""
        return float(self.b * self.t) * (self.item * 2 * (self.kv_heads * self.k + self.h * self.v) + 4 * self.decays)

    def backward_bytes(self) -> float:
        """q, k, v, dy and decays in, all gradients out, once."""
        return float(self.b * self.t) * (
            self.item * (4 * self.kv_heads * self.k + 3 * self.h * self.v) + 8 * self.decays
        )

    def forward_flops(self, chunk: int = 64) -> float:
        """Per token and head: 2 c (k + v) within chunks and 4 k v across them, or one chunk of all t."""
        return self._cheaper(chunk, block=2 * (self.k + self.v), across=4 * self.k * self.v)

    def backward_flops(self, chunk: int = 64) -> float:
        """Scores, dy v^T, dq, dk, dv within chunks; dq, dk, dv and both states across them."""
        return self._cheaper(chunk, block=2 * (3 * self.k + 2 * self.v), across=10 * self.k * self.v)

    def _cheaper(self, chunk: int, *, block: int, across: int) -> float:
        return float(self.b * self.t * self.h) * min(chunk * block + across, self.t * block)

    def step_flops(self) -> float:
        """Update and read of the state: 4 k v per head."""
        return 4.0 * self.b * self.h * self.k * self.v

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 8.0 * self.b * self.h * self.k * self.v
