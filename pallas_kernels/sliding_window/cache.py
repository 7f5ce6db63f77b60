"""The ring buffer that streaming reads and writes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class SlidingWindowCache(NamedTuple):
    """The last `w` keys and values: slot `p % w` holds absolute position `p`. Unwritten slots are finite."""

    k: jax.Array
    """(b, w, g, k): keys, in the cache's dtype."""
    v: jax.Array
    """(b, w, g, v): values, in the cache's dtype."""
    position: jax.Array
    """(b,) int32: tokens seen so far by each row."""

    @property
    def window(self) -> int:
        """Slots."""
        return self.k.shape[1]


def empty_cache(
    batch_size: int, window: int, n_kv_heads: int, k_dim: int, v_dim: int, dtype: DTypeLike = jnp.float32
) -> SlidingWindowCache:
    """The cache before the first token."""
    return SlidingWindowCache(
        k=jnp.zeros((batch_size, window, n_kv_heads, k_dim), dtype),
        v=jnp.zeros((batch_size, window, n_kv_heads, v_dim), dtype),
        position=jnp.zeros((batch_size,), jnp.int32),
    )


def rounded(cache: SlidingWindowCache, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """New keys and values as they will be read from the cache."""
    return k.astype(cache.k.dtype).astype(k.dtype), v.astype(cache.v.dtype).astype(v.dtype)


def history(cache: SlidingWindowCache, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """The last `w - 1` keys and values, oldest first; those before the first token hold unwritten slots."""
    w = cache.window
    slots = (cache.position[:, None] - (w - 1) + jnp.arange(w - 1, dtype=jnp.int32)[None, :]) % w
    k, v = (jnp.take_along_axis(x, slots[:, :, None, None], axis=1) for x in (cache.k, cache.v))
    return k.astype(dtype), v.astype(dtype)


def append(cache: SlidingWindowCache, k: jax.Array, v: jax.Array, count: int | None = None) -> SlidingWindowCache:
    """The cache after `count` more tokens (None: as many as given), of which k and v (b, t, g, .) are the last.

    Each slot takes the newest token that is its own, if any.
    """
    t, w = k.shape[1], cache.window
    count = t if count is None else count
    if count == 0:
        return cache
    end = cache.position + count
    age = ((end[:, None] - 1 - jnp.arange(w, dtype=jnp.int32)[None, :]) % w)[:, :, None, None]

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        newest = jnp.take_along_axis(new, jnp.maximum(t - 1 - age, 0), axis=1)
        return jnp.where(age < count, newest.astype(old.dtype), old)

    return SlidingWindowCache(k=write(cache.k, k), v=write(cache.v, v), position=end)


def append_one(cache: SlidingWindowCache, k: jax.Array, v: jax.Array) -> SlidingWindowCache:
    """As `append` for one token, k and v (b, g, .): writes one slot, in place where the cache is donated."""
    write = jax.vmap(lambda ring, new, slot: jax.lax.dynamic_update_index_in_dim(ring, new, slot, axis=0))
    slot = cache.position % cache.window
    return SlidingWindowCache(
        k=write(cache.k, k.astype(cache.k.dtype), slot),
        v=write(cache.v, v.astype(cache.v.dtype), slot),
        position=cache.position + 1,
    )
