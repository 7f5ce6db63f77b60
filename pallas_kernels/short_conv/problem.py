"""Problem description of short_conv."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels.shape import Call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Call):
    """A call of short_conv."""

    DIMENSIONS: ClassVar = ("b", "t", "d", "w")
    NONZERO: ClassVar = {"b": "batch", "d": "channels"}
    ON_MESH: ClassVar = "sharded_short_conv"

    d: int
    """Channels."""
    w: int
    """Taps."""
    gates: int = 0
    """1: an output gate; 2: an input gate too."""

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal x and gates: output gate, input gate."""
        return tuple(self.normal(key, self.d) for key in jax.random.split(jax.random.key(seed), 1 + self.gates))

    def parameters(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """taps (w, d), bias (d,) and offsets (3, d)."""
        uniform = jax.random.uniform(jax.random.key(7), (self.w + 4, self.d), jnp.float32, -1.0, 1.0)
        return uniform[: self.w] * self.w**-0.5, uniform[self.w] * self.w**-0.5, uniform[self.w + 1 :]

    def forward_bytes(self) -> float:
        """x and gates in, y out, once."""
        return float(2 + self.gates) * self.b * self.t * self.d * self.item

    def backward_bytes(self) -> float:
        """x, gates and dy in, dx and gradients of the gates out, once."""
        return float(3 + 2 * self.gates) * self.b * self.t * self.d * self.item

    def forward_flops(self) -> float:
        """One multiply-add per tap, four operations of the SiLU, one per gate; no matmul."""
        return float(2 * self.w + 4 + self.gates) * self.b * self.t * self.d

    def backward_flops(self) -> float:
        """The recomputed convolution, and as much for the gradients of x and of the taps."""
        return 3 * self.forward_flops()
