"""Landmarks of blocks of keys: the output of a long filter over the keys at the last token of each block.

    m_j = sum_{u >= 0} F_u k_{(j + 1) B - 1 - u},        F_{u + B} = carry F_u

for blocks of B tokens, so that `m_j = carry m_{j-1} + sum_{u < B} F_u k_{(j + 1) B - 1 - u}`. A filter of B taps has
carry 0, and `rho^u` has carry `rho^B`. O(k) per key; sums are float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxzoo.ops.diagonal_scan import diagonal_scan
from jaxzoo.utils.array_typing import Array, Float, Int


class LongFilter(NamedTuple):
    """Filter F per key head, float32."""

    taps: Float[Array, "c g"]
    """`F_0 .. F_{B-1}`; c is the block size B."""
    carry: Float[Array, "g"]
    """Ratio of each tap to the tap B places before it."""


@jax.jit
def extend_landmarks(
    landmarks: Float[Array, "b n g k"], k: Float[Array, "b t g k"], long_filter: LongFilter, position: Int[Array, "b"]
) -> Float[Array, "b n g k"]:
    """Updates the landmarks with `t >= 0` more keys per row, from `position` on; O(k) per key.

    An incomplete block has the sum over its keys so far and the blocks before it, a block without keys has 0. Tokens
    after the last block are dropped.
    """
    (b, t, g, width), (size, _) = k.shape, long_filter.taps.shape
    n = max(-(-(t + size - 1) // size), 1)  # blocks that t keys can touch
    rows = jnp.arange(b, dtype=jnp.int32)[:, None]
    places = (position % size)[:, None] + jnp.arange(t, dtype=jnp.int32)[None]
    keys = jnp.zeros((b, n * size, g, width), jnp.float32).at[rows, places].set(k.astype(jnp.float32))
    sums = block_sums(keys.reshape(b, n, size, g, width), long_filter.taps)

    touched = (position // size)[:, None] + jnp.arange(n, dtype=jnp.int32)[None]
    old = take(landmarks, jnp.minimum(touched, landmarks.shape[1] - 1))
    last = take(landmarks, jnp.maximum(touched[:, :1] - 1, 0))[:, 0]
    begun = (position % size > 0)[:, None, None]
    # A block with keys already includes the carry from earlier blocks; a new block adds it.
    before = jnp.where(begun, old[:, 0], jnp.where((position > 0)[:, None, None], last, 0))
    carry = jnp.broadcast_to(long_filter.carry[None, None], (b, n, g))
    carry = carry.at[:, 0].set(jnp.where(begun[..., 0], 1, carry[:, 0]))
    new = carried(sums, carry, before)
    reached = touched * size < (position + t)[:, None]
    return landmarks.at[rows, touched].set(jnp.where(reached[..., None, None], new, old), mode="drop")


def block_sums(blocks: Float[Array, "b n c g k"], taps: Float[Array, "c g"]) -> Float[Array, "b n g k"]:
    """`sum_{u < B} F_u k` over the keys of each block, u counted back from the last key."""
    return jnp.einsum("bncgk,cg->bngk", blocks.astype(jnp.float32), taps[::-1], precision=lax.Precision.HIGHEST)


def carried(sums: Float[Array, "b n g k"], carry: Float[Array, "#b n g"], before: Float[Array, "b g k"]) -> jax.Array:
    """`m_j = carry_j m_{j-1} + sums_j`, with `before` for m_{-1}."""
    carry = jnp.broadcast_to(carry, sums.shape[:3])
    blocks = (sums, carry)
    return diagonal_scan(blocks, lambda block: (block[1][..., None], block[0]), lambda landmark, _: landmark, before)[0]


def take(x: jax.Array, index: Int[Array, "b i"]) -> jax.Array:
    """`x[row, index[row]]` for every row."""
    return jnp.take_along_axis(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)
