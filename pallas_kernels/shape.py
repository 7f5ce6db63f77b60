"""The shape of an attention: what the problems of every op share."""

import abc
import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape(abc.ABC):
    """q (b, t, h, k), k (b, t, g, k), v (b, t, g, v); g = 0: h. An op's `Problem` adds what else a call may have, and
    its operations and bytes."""

    b: int
    t: int
    h: int
    k: int
    v: int
    g: int = 0
    dtype: DTypeLike = jnp.bfloat16
    """Dtype of q, k and v."""

    @property
    def kv_heads(self) -> int:
        return self.g or self.h

    @property
    def dtype_name(self) -> str:
        return jnp.dtype(self.dtype).name

    def sizes(self) -> dict[str, int | str]:
        """By dimension, for tables."""
        return {"b": self.b, "t": self.t, "h": self.h, "k": self.k, "v": self.v}

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal q, k, v."""
        shapes = [(self.h, self.k), (self.kv_heads, self.k), (self.kv_heads, self.v)]
        keys = jax.random.split(jax.random.key(seed), 3)
        q, k, v = (
            jax.random.normal(key, (self.b, self.t, *shape), jnp.float32).astype(self.dtype)
            for key, shape in zip(keys, shapes, strict=True)
        )
        return q, k, v

    def forward_bytes(self) -> float:
        """q, k, v in, y out, once."""
        item = jnp.dtype(self.dtype).itemsize
        return float(self.b * self.t * item) * (self.h + self.kv_heads) * (self.k + self.v)

    def backward_bytes(self) -> float:
        """q, k, v, y, dy and a float32 number for each query and head in, dq, dk, dv out, once."""
        item = jnp.dtype(self.dtype).itemsize
        heads = (self.h + self.kv_heads) * (2 * self.k + 2 * self.v)
        return float(self.b * self.t) * (item * heads + 4 * self.h)

    @abc.abstractmethod
    def forward_flops(self) -> float:
        """Useful matmul operations of a forward pass."""

    @abc.abstractmethod
    def backward_flops(self) -> float:
        """FLOPs of a backward pass."""

    @abc.abstractmethod
    def step_flops(self) -> float:
        """FLOPs of one token in every row."""

    @abc.abstractmethod
    def step_bytes(self) -> float:
        """Bytes of the states that one token reads and writes."""
