"""Softmax attention over the last `window` tokens, in blocks, with a ring buffer for streaming.

Token `i` attends to keys `{k_{i-w+1}, ..., k_i}` (Based, sec. 4.2). `window=w` counts the token itself; other
public codes count differently: flash-attention's `(w, 0)` and Zoology's `block_size=w` see `w + 1` keys,
fla's `window_size=w` sees `w` as here.

Time and memory are O(t * w): queries go in blocks of about half a window, and each block meets its own keys
and the two blocks before.
"""

from typing import Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.ops.softmax_attention import softmax_attention

MIN_BLOCK = 16
"""Smallest block of queries: the matmuls of smaller ones are dominated by their overhead."""


class SlidingWindowCache(NamedTuple):
    """The last `w` keys and values: slot `p % w` holds absolute position `p`. Unwritten slots are finite."""

    k: Float[Array, "b w g k"]
    """Keys, in the cache's dtype."""
    v: Float[Array, "b w g v"]
    """Values, in the cache's dtype."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""


def empty_cache(
    batch_size: int, window: int, n_kv_heads: int, k_dim: int, v_dim: int, dtype: DTypeLike = jnp.float32
) -> SlidingWindowCache:
    """The cache before the first token."""
    return SlidingWindowCache(
        k=jnp.zeros((batch_size, window, n_kv_heads, k_dim), dtype),
        v=jnp.zeros((batch_size, window, n_kv_heads, v_dim), dtype),
        position=jnp.zeros((batch_size,), jnp.int32),
    )


@overload
def sliding_window_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    *,
    window: int,
    scale: float | None = None,
    initial_cache: SlidingWindowCache | None = None,
    return_cache: Literal[False] = False,
) -> Float[Array, "b t h v"]: ...
@overload
def sliding_window_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t g k"],
    v: Float[Array, "b t g v"],
    *,
    window: int,
    scale: float | None = None,
    initial_cache: SlidingWindowCache | None = None,
    return_cache: Literal[True],
) -> tuple[Float[Array, "b t h v"], SlidingWindowCache]: ...
def sliding_window_attention(
    q, k, v, *, window, scale=None, initial_cache=None, return_cache=False
) -> Float[Array, "b t h v"] | tuple[Float[Array, "b t h v"], SlidingWindowCache]:
    """Causal softmax attention of each token to itself and the `window - 1` tokens before it.

    Scores and softmax are float32, the matmuls take the dtype of `q`. New keys and values are rounded to the
    dtype of `initial_cache`, so that the outputs do not depend on where a sequence is cut into calls.

    Args:
      q: queries; `h` is a multiple of `g`: key/value head `j` serves query heads `j h/g .. (j+1) h/g - 1`.
      k: keys, dtype of `q`.
      v: values, dtype of `q`.
      window: keys that a token sees, itself included; at least 1.
      scale: factor of the scores; None: `k_dim ** -0.5`.
      initial_cache: the tokens before, `window` slots; rows may stand at different positions. None: none.
      return_cache: returns the cache after the last token too, float32 where `initial_cache` is None.

    Returns:
      Outputs in the dtype of `q`, or (outputs, cache).

    Raises:
      ValueError: window below 1, heads that do not divide, or a cache of another window.
    """
    _check(q.shape[2], k.shape[2], window, initial_cache)
    cache = initial_cache
    if cache is None and return_cache:
        cache = empty_cache(k.shape[0], window, k.shape[2], k.shape[3], v.shape[3])
    if initial_cache is not None:
        k = k.astype(initial_cache.k.dtype).astype(q.dtype)
        v = v.astype(initial_cache.v.dtype).astype(q.dtype)
    y = _attend_in_blocks(q, k, v, window, k.shape[-1] ** -0.5 if scale is None else scale, initial_cache)
    return (y, _append(cache, k, v)) if cache is not None and return_cache else y


def sliding_window_step(
    cache: SlidingWindowCache,
    q: Float[Array, "b h k"],
    k: Float[Array, "b g k"],
    v: Float[Array, "b g v"],
    *,
    scale: float | None = None,
) -> tuple[Float[Array, "b h v"], SlidingWindowCache]:
    """One token: writes one slot of the ring and attends to it. O(w) time, whatever the position.

    Equals `sliding_window_attention` with `t = 1`; the window is the number of slots.
    """
    window = cache.k.shape[1]
    _check(q.shape[1], k.shape[1], window, cache)
    write = jax.vmap(lambda ring, new, slot: jax.lax.dynamic_update_index_in_dim(ring, new, slot, axis=0))
    slot = cache.position % window
    after = SlidingWindowCache(
        k=write(cache.k, k.astype(cache.k.dtype), slot),
        v=write(cache.v, v.astype(cache.v.dtype), slot),
        position=cache.position + 1,
    )
    b, h, d = q.shape
    g = k.shape[1]
    written = jnp.arange(window)[None, :] <= cache.position[:, None]
    y = softmax_attention(
        q.reshape(b, g, h // g, 1, d),
        after.k.astype(q.dtype).transpose(0, 2, 1, 3),
        after.v.astype(q.dtype).transpose(0, 2, 1, 3),
        visible=written[:, None, None, None, :],
        scale=d**-0.5 if scale is None else scale,
    )
    return y.reshape(b, h, -1), after


def keys_per_query(length: int, window: int) -> float:
    """Scores a query that `sliding_window_attention` computes at `t = length`, masked ones included."""
    block, back = _plan(length, window, history=False)
    return -(-length // block) * block * (back + block) / length


def _check(h: int, g: int, window: int, cache: SlidingWindowCache | None) -> None:
    if window < 1:
        raise ValueError(f"sliding_window_attention: window={window} must be at least 1 (it counts the token itself)")
    if h % g:
        raise ValueError(f"sliding_window_attention: {h} query heads must be a multiple of {g} key/value heads")
    if cache is not None and cache.k.shape[1] != window:
        raise ValueError(
            f"sliding_window_attention: initial_cache has {cache.k.shape[1]} slots, must be window={window}; "
            "make it with empty_cache for this window"
        )


def _plan(t: int, window: int, *, history: bool) -> tuple[int, int]:
    """Block of queries and keys before it that it meets; a single block where several would cost as much."""
    block = max(MIN_BLOCK, -(-window // 2))
    back = -(-(window - 1) // block) * block
    if t <= back + block:
        return t, window - 1 if history else 0
    return block, back


def _attend_in_blocks(
    q: jax.Array, k: jax.Array, v: jax.Array, window: int, scale: float, cache: SlidingWindowCache | None
) -> jax.Array:
    b, t, h, _ = q.shape
    g = k.shape[2]
    if t == 0:
        return jnp.zeros((b, 0, h, v.shape[-1]), q.dtype)
    block, back = _plan(t, window, history=cache is not None)
    n = -(-t // block)
    pad = n * block - t
    q_bgnrck = (
        jnp.pad(q, ((0, 0), (0, pad), (0, 0), (0, 0))).reshape(b, n, block, g, h // g, -1).transpose(0, 3, 1, 4, 2, 5)
    )
    old_k, old_v = (None, None) if cache is None else _history(cache, q.dtype)
    k_bgnsk, v_bgnsv = (_key_blocks(x, old, back, block, pad) for x, old in ((k, old_k), (v, old_v)))
    position = jnp.zeros((1,), jnp.int32) if cache is None else cache.position
    visible = _visible(position, n, block, back, window)[:, None, :, None, :, :]
    y_bgnrcv = softmax_attention(q_bgnrck, k_bgnsk, v_bgnsv, visible=visible, scale=scale)
    return y_bgnrcv.transpose(0, 2, 4, 1, 3, 5).reshape(b, n * block, h, -1)[:, :t]


def _visible(position: jax.Array, n: int, block: int, back: int, window: int) -> jax.Array:
    """Which keys a query sees, `(b, n, block, back + block)`: in the window, not before the first token."""
    key = jnp.arange(back + block) - back
    distance = jnp.arange(block)[:, None] - key[None, :]
    in_window = (distance >= 0) & (distance < window)
    start = position[:, None] + jnp.arange(n)[None, :] * block
    exists = start[:, :, None] + key[None, None, :] >= 0
    return in_window[None, None, :, :] & exists[:, :, None, :]


def _key_blocks(x: jax.Array, old: jax.Array | None, back: int, block: int, pad: int) -> jax.Array:
    """The keys that each block of queries meets: `(b, t, g, k)` to `(b, g, n, back + block, k)`."""
    if old is not None:
        x = jnp.concatenate([old, x], axis=1)
    front = back - (0 if old is None else old.shape[1])
    x = jnp.pad(x, ((0, 0), (front, pad), (0, 0), (0, 0))).transpose(0, 2, 1, 3)
    if x.shape[2] == back + block:
        return x[:, :, None]
    b, g, _, d = x.shape
    x = x.reshape(b, g, -1, block, d)
    n = x.shape[2] - back // block
    return jnp.concatenate([x[:, :, i : i + n] for i in range(back // block + 1)], axis=3)


def _history(cache: SlidingWindowCache, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """The last `w - 1` keys and values, oldest first; those before the first token hold unwritten slots."""
    window = cache.k.shape[1]
    slots = (cache.position[:, None] - (window - 1) + jnp.arange(window - 1)[None, :]) % window
    k, v = (jnp.take_along_axis(x, slots[:, :, None, None], axis=1) for x in (cache.k, cache.v))
    return k.astype(dtype), v.astype(dtype)


def _append(cache: SlidingWindowCache, k: jax.Array, v: jax.Array) -> SlidingWindowCache:
    """The cache after `t` more tokens: each slot takes the newest of them that is its own, if any."""
    t, window = k.shape[1], cache.k.shape[1]
    if t == 0:
        return cache
    end = cache.position + t
    age = (end[:, None] - 1 - jnp.arange(window)[None, :]) % window
    source = (t - 1 - age)[:, :, None, None]

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        newest = jnp.take_along_axis(new, jnp.maximum(source, 0), axis=1)
        return jnp.where(source >= 0, newest.astype(old.dtype), old)

    return SlidingWindowCache(k=write(cache.k, k), v=write(cache.v, v), position=end)
