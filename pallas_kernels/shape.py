"""Base classes of problems, the descriptions of calls."""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(abc.ABC):
    """A call of an op: sizes and dtypes, on which objections and floors depend."""

    DIMENSIONS: ClassVar[tuple[str, ...]] = ("b", "t", "h", "k", "v")
    """Fields shown in tables."""
    NONZERO: ClassVar[dict[str, str]] = {"b": "batch", "h": "heads"}
    """Fields that must not be 0 for kernels, and their names in errors."""
    ON_MESH: ClassVar[str]
    """Function to call on a mesh."""

    b: int
    t: int
    dtype: DTypeLike = jnp.bfloat16
    """Dtype of the tokens."""

    @property
    def dtype_name(self) -> str:
        return jnp.dtype(self.dtype).name

    @property
    def item(self) -> int:
        """Bytes per number of the tokens."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def unserved(self) -> str | None:
        """Why no kernel serves the call, or None."""
        sizes = {name: getattr(self, field) for field, name in self.NONZERO.items()}
        if all(sizes.values()):
            return None
        *first, last = (f"{name} {size}" for name, size in sizes.items())
        return f"{', '.join(first)} or {last} are 0"

    def sizes(self) -> dict[str, int | str]:
        """Sizes by dimension, for tables."""
        return {name: getattr(self, name) for name in self.DIMENSIONS}

    def token_bytes(self, numbers: int) -> float:
        """Bytes of `numbers` per token and head, in the dtype of the tokens."""
        return float(self.b * self.t * getattr(self, "h", 1)) * numbers * self.item

    def normal(self, key: jax.Array, *shape: int) -> jax.Array:
        """Normal numbers, (b, t, *shape) in the dtype of the tokens."""
        return jax.random.normal(key, (self.b, self.t, *shape), jnp.float32).astype(self.dtype)

    @abc.abstractmethod
    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Random arrays of a call."""

    @abc.abstractmethod
    def forward_bytes(self) -> float:
        """Bytes of inputs and outputs of a forward pass."""

    @abc.abstractmethod
    def backward_bytes(self) -> float:
        """Bytes of inputs and outputs of a backward pass."""

    @abc.abstractmethod
    def forward_flops(self) -> float:
        """Useful operations of a forward pass."""

    @abc.abstractmethod
    def backward_flops(self) -> float:
        """Useful operations of a backward pass."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape(Call):
    """q (b, t, h, k), k (b, t, g, k), v (b, t, g, v); g = 0 means g = h."""

    h: int
    k: int
    v: int
    g: int = 0

    @property
    def kv_heads(self) -> int:
        return self.g or self.h

    def inputs(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Normal q, k, v."""
        keys = jax.random.split(jax.random.key(seed), 3)
        heads = ((self.h, self.k), (self.kv_heads, self.k), (self.kv_heads, self.v))
        return tuple(self.normal(key, *shape) for key, shape in zip(keys, heads, strict=True))

    def forward_bytes(self) -> float:
        """q, k, v in, y out, once."""
        return float(self.b * self.t * self.item) * (self.h + self.kv_heads) * (self.k + self.v)

    def backward_bytes(self) -> float:
        """q, k, v, y, dy and a float32 number per query and head in, dq, dk, dv out, once."""
        heads = (self.h + self.kv_heads) * (2 * self.k + 2 * self.v)
        return float(self.b * self.t) * (self.item * heads + 4 * self.h)

    @abc.abstractmethod
    def step_flops(self) -> float:
        """FLOPs of one token per row."""

    @abc.abstractmethod
    def step_bytes(self) -> float:
        """Bytes of the states that one token reads and writes."""
