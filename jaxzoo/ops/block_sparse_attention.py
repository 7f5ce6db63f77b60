"""Causal softmax attention by blocks: the queries of a block see a few blocks of keys, which a table names.

    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j      over j <= i in the blocks chosen[floor(i / block_size)]

The keys of the chosen blocks are gathered: O(t c block_size) for tables of c blocks a row, no (t, t) array. Scores,
softmax and sums are float32; the backward pass gathers and computes scores again.
"""

import functools

import jax
import jax.numpy as jnp

from jaxzoo.ops.local_attention import attend_one
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.softmax import softmax_attention


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
    """The equation of the module docstring for `t >= 0` queries.

    Args:
      q: queries of the positions from `start` on; h is a multiple of g.
      k: keys of the positions from 0 on, those of the queries included; those after the last query are not seen.
      v: values, likewise.
      chosen: int32, the blocks that the queries of each block see; -1: none. No block twice in a row, and every block
        sees itself. A block for every key.
      start: positions of the first queries; None: 0.
      block_size: tokens of a block; s is a multiple of it.

    Returns:
      y in the dtype of `q`.
    """
    (b, t, h, d), (s, g, v_dim), size = q.shape, v.shape[1:], block_size
    if b == 0 or t == 0:
        return jnp.zeros((b, t, h, v_dim), q.dtype)
    at = jnp.arange(t, dtype=jnp.int32)[None, :] + (jnp.zeros((1,), jnp.int32) if start is None else start)[:, None]
    n = -(-(t + (0 if start is None else size - 1)) // size)
    block = jnp.minimum(at[:, :1] // size + jnp.arange(n, dtype=jnp.int32)[None, :], s // size - 1)
    places = None if start is None else at - at[:, :1] // size * size  # of the queries, from their first block on

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
    """The same for one query of each row, at `position`; reads only the keys of its chosen blocks."""
    seen = chosen[jnp.minimum(position // block_size, chosen.shape[0] - 1)][:, None]
    keys, values = (_gather(x, seen, block_size, x.dtype)[:, 0].swapaxes(1, 2) for x in (k, v))
    slot = seen[:, 0, :, None] * block_size + jnp.arange(block_size, dtype=jnp.int32)[None, None, :]
    visible = (seen[:, 0, :, None] >= 0) & (slot <= position[:, None, None])
    return attend_one(q, keys, values, visible.reshape(visible.shape[0], -1))[0]


def _place(q: jax.Array, places: jax.Array | None, length: int) -> jax.Array:
    """Queries at their places of `length`, the first ones unless they are named; zeros elsewhere."""
    b, t = q.shape[:2]
    if places is None:
        return jnp.pad(q, ((0, 0), (0, length - t), (0, 0), (0, 0)))
    return jnp.zeros((b, length, *q.shape[2:]), q.dtype).at[jnp.arange(b, dtype=jnp.int32)[:, None], places].set(q)


def _gather(x: jax.Array, seen: jax.Array, size: int, dtype) -> jax.Array:
    """(b, s, g, k) -> (b, n, g, c size, k): the blocks that `seen` (b or 1, n, c) names; -1 gives block 0.

    In float32, so that the gradient of a block that many see is summed in float32.
    """
    b, s, g, width = x.shape
    blocks = x.astype(jnp.float32).reshape(b, s // size, size, g, width)
    seen = jnp.maximum(seen, 0)
    taken = blocks[:, seen[0]] if seen.shape[0] == 1 else jax.vmap(lambda row, index: row[index])(blocks, seen)
    return taken.reshape(b, seen.shape[1], -1, g, width).swapaxes(2, 3).astype(dtype)
