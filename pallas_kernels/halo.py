"""Halo exchange: the tokens before a part of a sequence that is split over a mesh axis."""

import math

import jax
import jax.numpy as jnp
from jax import lax


def with_halo(x: jax.Array, size: int, old: jax.Array | None, *, axis: str, parts: int) -> jax.Array:
    """Prepends the `size` tokens before this part to `x`, inside a `shard_map`.

    It takes one exchange per part that holds tokens of the halo.

    Args:
      x: (b, t, ...), the t tokens of this part.
      size: tokens of the halo, which may span several parts.
      old: (b, size, ...), tokens before the first part; None: zeros.
      axis, parts: mesh axis of the parts, and its size.
    """
    t = x.shape[1]
    received: list[jax.Array] = []
    for distance in range(1, min(math.ceil(size / t), parts - 1) + 1):
        needed = min(t, size - (distance - 1) * t)
        pairs = [(i, i + distance) for i in range(parts - distance)]
        received.insert(0, lax.ppermute(x[:, t - needed :], axis, pairs))
    missing = size - sum(part.shape[1] for part in received)
    halo = jnp.concatenate([jnp.zeros((x.shape[0], missing, *x.shape[2:]), x.dtype), *received], axis=1)
    if old is not None and size:
        slot = jnp.arange(size, dtype=jnp.int32) + jnp.asarray(lax.axis_index(axis), jnp.int32) * t
        from_old = (slot < size).reshape(1, -1, *[1] * (x.ndim - 2))
        halo = jnp.where(from_old, jnp.take(old, jnp.minimum(slot, size - 1), axis=1).astype(x.dtype), halo)
    return jnp.concatenate([halo, x], axis=1)
