"""Causal block-sparse softmax attention: a table lists the few blocks of keys that each block of queries sees.

    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j      over j <= i in the blocks chosen[floor(i / block_size)]

The keys of the chosen blocks are gathered: O(t c block_size) with c blocks per row of the table, and no (t, t) array.
Scores, softmax and sums are float32; the backward pass gathers and scores again.
"""

import functools

import jax
import jax.numpy as jnp

from jaxzoo.ops.local_attention import attend_one
from jaxzoo.ops.naive import attend_all
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.softmax import softmax_attention


def naive_block_sparse_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g v"],
    chosen: Int[Array, "n c"],
    start: Int[Array, "b"] | None = None,
    *,
    block_size: int,
) -> Float[Array, "b t h v"]:
    """Quadratic form of `block_sparse_attention`."""
    key, query = (jnp.arange(x.shape[1], dtype=jnp.int32)[None] for x in (k, q))
    query = query if start is None else start[:, None] + query
    of_chosen = chosen[query // block_size][..., None] == key[None, :, None] // block_size  # (b, t, c, s)
    return attend_all(q, k, v, of_chosen.any(2) & (key[None] <= query[..., None]))[0]


@functools.partial(jax.jit, static_argnames=("block_size",))
def block_sparse_attention(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g v"],
    chosen: Int[Array, "n c"],
    start: Int[Array, "b"] | None = None,
    *,
    block_size: int,
) -> Float[Array, "b t h v"]:
    """Applies the equation of the module docstring to `t >= 0` queries.

    Args:
      q: queries at positions `start`, `start + 1`, ...; h is a multiple of g.
      k: keys at positions 0, 1, ..., including the queries' own; keys after the last query are not seen.
      v: values at the same positions.
      chosen: int32, the blocks that each block of queries sees, padded with -1. Every block sees itself, and no row
        lists a block twice. The n rows cover all keys.
      start: position of the first query of each row; None: 0.
      block_size: tokens per block; divides s.

    Returns:
      y in the dtype of `q`.
    """
    (b, t, h, d), (s, g, v_dim), size = q.shape, v.shape[1:], block_size
    if b == 0 or t == 0:
        return jnp.zeros((b, t, h, v_dim), q.dtype)
    at = jnp.arange(t, dtype=jnp.int32)[None, :] + (jnp.zeros((1,), jnp.int32) if start is None else start)[:, None]
    n = -(-(t + (0 if start is None else size - 1)) // size)
    block = jnp.minimum(at[:, :1] // size + jnp.arange(n, dtype=jnp.int32)[None, :], s // size - 1)
    places = None if start is None else at - at[:, :1] // size * size  # of the queries in their blocks

    @jax.checkpoint
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        seen = chosen[block]  # (b or 1, n, c)
        place = jnp.arange(size, dtype=jnp.int32)[None, None, None, :]
        position = seen[..., None] * size + place
        position = jnp.where(seen[..., None] >= 0, position, s).reshape(*block.shape, 1, -1)
        query = block[..., None] * size + place[0]
        visible = position <= query[..., None]
        y, _ = softmax_attention(
            _place(q, places, n * size).reshape(b, n, size, g, h // g, d).transpose(0, 1, 3, 4, 2, 5),
            _gather(k, seen, size, q.dtype),
            _gather(v, seen, size, q.dtype),
            visible=visible[:, :, None, None],
            scale=d**-0.5,
        )
        y = y.transpose(0, 1, 4, 2, 3, 5).reshape(b, n * size, h, v_dim)
        return y[:, :t] if places is None else jnp.take_along_axis(y, places[..., None, None], axis=1)

    return attend(q, k, v)


def block_sparse_step(
    q: Float[Array, "b h k"],
    k: Float[Array, "b s g k"],
    v: Float[Array, "b s g v"],
    chosen: Int[Array, "n c"],
    position: Int[Array, "b"],
    *,
    block_size: int,
) -> Float[Array, "b h v"]:
    """Attention of one query per row, at `position`; reads only the keys of the chosen blocks."""
    seen = chosen[jnp.minimum(position // block_size, chosen.shape[0] - 1)][:, None]
    keys, values = (_gather(x, seen, block_size, x.dtype)[:, 0].swapaxes(1, 2) for x in (k, v))
    slot = seen[:, 0, :, None] * block_size + jnp.arange(block_size, dtype=jnp.int32)[None, None, :]
    visible = (seen[:, 0, :, None] >= 0) & (slot <= position[:, None, None])
    return attend_one(q, keys, values, visible.reshape(visible.shape[0], -1))[0]


def _place(q: jax.Array, places: jax.Array | None, length: int) -> jax.Array:
    """Scatters queries to their places among `length`; `places` None: the first ones. Other places are zero."""
    b, t = q.shape[:2]
    if places is None:
        return jnp.pad(q, ((0, 0), (0, length - t), (0, 0), (0, 0)))
    return jnp.zeros((b, length, *q.shape[2:]), q.dtype).at[jnp.arange(b, dtype=jnp.int32)[:, None], places].set(q)


def _gather(x: jax.Array, seen: jax.Array, size: int, dtype) -> jax.Array:
    """(b, s, g, k) -> (b, n, g, c size, k): gathers the blocks `seen` (b or 1, n, c); -1 gives block 0.

    Gathers in float32, so that the gradients of a block that many queries see are summed in float32.
    """
    b, s, g, width = x.shape
    blocks = x.astype(jnp.float32).reshape(b, s // size, size, g, width)
    seen = jnp.maximum(seen, 0)
    taken = blocks[:, seen[0]] if seen.shape[0] == 1 else jax.vmap(lambda row, index: row[index])(blocks, seen)
    return taken.reshape(b, seen.shape[1], -1, g, width).swapaxes(2, 3).astype(dtype)
