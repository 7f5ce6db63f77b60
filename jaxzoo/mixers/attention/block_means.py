"""Shared parts of attentions that select blocks by the mean of their keys: the cache, and block means."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.mixers.attention.softmax_attention import AttentionState, empty_cache, extend_cache
from jaxzoo.ops.landmarks import LongFilter, extend_landmarks
from jaxzoo.utils.array_typing import Array, Float, Int


class BlockMeansState(NamedTuple):
    """KV cache with block means. Slot `p` holds absolute position `p`."""

    k: Float[Array, "b s g k"]
    """Keys, rotated to their absolute positions, in the dtype given; `s` is the capacity in whole blocks."""
    v: Float[Array, "b s g k"]
    """Values of the same tokens, in the same dtype."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""
    key_means: Float[Array, "b n g k"]
    """Mean of the keys per block, float32; for an incomplete block the sum so far, divided by the block size."""
    value_means: Float[Array, "b n g k"]
    """Mean of the values per block; empty, (b, n, g, 0), if not needed."""


def block_means_filter(size: int, n_heads: int) -> LongFilter:
    """Filter whose landmarks are the block means."""
    return LongFilter(jnp.full((size, n_heads), 1 / size), jnp.zeros((n_heads,)))


def empty_block_means(
    config: MultiHeadConfig, batch_size: int, capacity: int | None, dtype: DTypeLike, *, size: int, values: bool
) -> BlockMeansState:
    """Initial state; `values`: with means of values.

    Raises:
      ValueError: `capacity` is None or not positive.
    """
    cache = empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype, block_size=size)
    means = jnp.zeros((batch_size, cache.k.shape[1] // size, *cache.k.shape[2:]), jnp.float32)
    return BlockMeansState(*cache, means, means if values else means[..., :0])


def extend_block_means(state: BlockMeansState, k: jax.Array, v: jax.Array) -> BlockMeansState:
    """Appends `t` tokens to the state, keys and values rounded to its dtype.

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
