"""A halo: the tokens before a part of a sequence that is shared out over a mesh axis, from the parts that hold them."""

import math

import jax
import jax.numpy as jnp
from jax import lax


def with_halo(x: jax.Array, size: int, old: jax.Array | None, *, axis: str, parts: int) -> jax.Array:
    """`x` of this part after the `size` tokens before it; to be called inside a `shard_map`.

    As many exchanges as parts hold the halo, each of what is needed of one part.

    Args:
      x: (b, t, ...), t tokens of every part.
      size: tokens of the halo; it may reach over several parts.
      old: (b, size, ...), the tokens before the first part; None: zeros.
      axis: mesh axis of the parts.
      parts: its size.

    Returns:
      (b, size + t, ...).
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
