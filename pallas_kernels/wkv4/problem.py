"""Problem description of wkv4."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels.shape import Call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Call):
    """A call of wkv4."""

    DIMENSIONS: ClassVar = ("b", "t", "d")
    NONZERO: ClassVar = {"b": "batch", "d": "channels"}
    ON_MESH: ClassVar = "sharded_wkv4"

    d: int
    """Channels."""

    def inputs(self, seed: int = 0) -> tuple[jax.Array, jax.Array]:
        """Normal k and v."""
        k, v = (self.normal(key, self.d) for key in jax.random.split(jax.random.key(seed)))
        return k, v

    def parameters(self) -> tuple[jax.Array, jax.Array]:
        """w (d,), from e^-5 to e^3 as RWKV-4 initialises its first layer, and u (d,)."""
        place = jnp.arange(self.d, dtype=jnp.float32) / max(self.d - 1, 1)
        zigzag = ((jnp.arange(self.d) + 1) % 3 - 1).astype(jnp.float32)
        return jnp.exp(-5 + 8 * place**0.7), jnp.log(0.3) + 0.5 * zigzag

    def forward_bytes(self) -> float:
        """k and v in, y out, once."""
        return 3.0 * self.b * self.t * self.d * self.item

    def backward_bytes(self) -> float:
        """k, v and dy in, dk and dv out, once."""
        return 5.0 * self.b * self.t * self.d * self.item

    def forward_flops(self) -> float:
        """Three multiply-adds to write the sums and three to read them; no matmul."""
        return 12.0 * self.b * self.t * self.d

    def backward_flops(self) -> float:
        """Recomputed sums, and as many FLOPs for each of the gradients of keys and values."""
        return 3 * self.forward_flops()

    def step_flops(self) -> float:
        """FLOPs of one token per row."""
        return 12.0 * self.b * self.d

    def step_bytes(self) -> float:
        """The float32 state, read and written."""
        return 24.0 * self.b * self.d
