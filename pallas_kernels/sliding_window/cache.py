"""Ring buffer of keys and values for decoding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


class SlidingWindowCache(NamedTuple):
    """The last `w` keys and values: slot `p % w` holds absolute position `p`. Unwritten slots are finite."""

    k: jax.Array
    """Keys (b, w, g, k)."""
    v: jax.Array
    """Values (b, w, g, v)."""
    position: jax.Array
    """Tokens seen by each row, (b,) int32."""

    @property
    def window(self) -> int:
        """Number of slots."""
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
    """Rounds new keys and values to the cache's dtype."""
    return k.astype(cache.k.dtype).astype(k.dtype), v.astype(cache.v.dtype).astype(v.dtype)


def history(cache: SlidingWindowCache, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """The last `w - 1` keys and values, oldest first; entries before the first token are arbitrary."""
    w = cache.window
    slots = (cache.position[:, None] - (w - 1) + jnp.arange(w - 1, dtype=jnp.int32)[None, :]) % w
    k, v = (jnp.take_along_axis(x, slots[:, :, None, None], axis=1) for x in (cache.k, cache.v))
    return k.astype(dtype), v.astype(dtype)


def append(cache: SlidingWindowCache, k: jax.Array, v: jax.Array, count: int | None = None) -> SlidingWindowCache:
    """The cache after `count` more tokens (None: t), of which k and v (b, t, g, .) are the last."""
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
    """`append` of one token, k and v (b, g, .): writes one slot, in place if the cache is donated."""
    write = jax.vmap(lambda ring, new, slot: jax.lax.dynamic_update_index_in_dim(ring, new, slot, axis=0))
    slot = cache.position % cache.window
    return SlidingWindowCache(
        k=write(cache.k, k.astype(cache.k.dtype), slot),
        v=write(cache.v, v.astype(cache.v.dtype), slot),
        position=cache.position + 1,
    )
