"""Problem description of residual_norm."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.shape import Call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(Call):
    """A call of residual_norm; `dtype` is the branch's and the norm's."""

    DIMENSIONS: ClassVar = ("b", "t", "d")
    NONZERO: ClassVar = {"b": "batch", "t": "length", "d": "width"}
    ON_MESH: ClassVar = "sharded_residual_norm"

    d: int
    """Width."""
    stream_dtype: DTypeLike = jnp.float32
    """Dtype of the residual stream."""
    adds: bool = True
    """Whether there is a branch output to add."""

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal residual stream and branch output."""
        x, y = (self.normal(key, self.d) for key in jax.random.split(jax.random.key(seed)))
        return x.astype(self.stream_dtype), y

    def scale(self) -> jax.Array:
        """Scale (d,)."""
        return jax.random.uniform(jax.random.key(7), (self.d,), jnp.float32, 0.5, 1.5)

    def forward_bytes(self) -> float:
        """x and y in, their sum and its norm out, once."""
        return float(self.b * self.t * self.d) * ((1 + self.adds) * self._stream + (1 + self.adds) * self.item)

    def backward_bytes(self) -> float:
        """The sum and both cotangents in, gradients of x and y out, once."""
        return float(self.b * self.t * self.d) * (3 * self._stream + (1 + self.adds) * self.item)

    def forward_flops(self) -> float:
        """One addition, two operations of the mean square, two of the scaling; no matmul."""
        return 5.0 * self.b * self.t * self.d

    def backward_flops(self) -> float:
        """The statistics again, and as much for each of the gradients of the stream and of the scale."""
        return 3 * self.forward_flops()

    @property
    def _stream(self) -> int:
        return jnp.dtype(self.stream_dtype).itemsize
