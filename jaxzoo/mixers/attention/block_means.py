"""Shared parts of attentions that choose blocks by the mean of their keys: the cache, and means of its blocks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.mixers.attention.softmax_attention import AttentionState, empty_cache, extend_cache
from jaxzoo.ops.landmarks import LongFilter, extend_landmarks
from jaxzoo.utils.array_typing import Array, Float, Int


class BlockMeansState(NamedTuple):
    """The past by blocks. Slot `p` holds absolute position `p`."""

    k: Float[Array, "b s g k"]
    """Keys, rotated to their absolute positions, in the dtype given; `s` is the capacity in whole blocks."""
    v: Float[Array, "b s g k"]
    """Values, likewise."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""
    key_means: Float[Array, "b n g k"]
    """Mean of the keys of each block, float32; of a block that is not complete the sum so far, divided by its size."""
    value_means: Float[Array, "b n g k"]
    """The same of the values; empty, (b, n, g, 0), where nothing reads it."""


def block_means_filter(size: int, n_heads: int) -> LongFilter:
    """The filter whose landmarks are the means of blocks."""
    return LongFilter(jnp.full((size, n_heads), 1 / size), jnp.zeros((n_heads,)))


def empty_block_means(
    config: MultiHeadConfig, batch_size: int, capacity: int | None, dtype: DTypeLike, *, size: int, values: bool
) -> BlockMeansState:
    """The state before the first token; `values`: with means of values.

    Raises:
      ValueError: `capacity` is None or not positive.
    """
    cache = empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype, block_size=size)
    means = jnp.zeros((batch_size, cache.k.shape[1] // size, *cache.k.shape[2:]), jnp.float32)
    return BlockMeansState(*cache, means, means if values else means[..., :0])


def extend_block_means(state: BlockMeansState, k: jax.Array, v: jax.Array) -> BlockMeansState:
    """The state with `t` more tokens, keys and values rounded to its dtype.

    Raises:
      ValueError: `t` exceeds its slots.
    """
    cache, means = extend_cache(AttentionState(*state[:3]), k, v), state.key_means
    mean = block_means_filter(state.k.shape[1] // means.shape[1], k.shape[2])
    key_means = extend_landmarks(means, k, mean, state.position)
    value_means = state.value_means
    if value_means.shape[3]:
        value_means = extend_landmarks(value_means, v, mean, state.position)
    return BlockMeansState(*cache, key_means, value_means)
