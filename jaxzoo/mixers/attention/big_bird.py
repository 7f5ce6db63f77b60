"""BigBird (Zaheer et al. 2020, ITC, sec. 2 and App. D): attention to global, near and random blocks; causal.

    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j,     j <= i in global, near and random blocks

The sequence is split into blocks of b tokens. The queries of a block attend, by one softmax, to

- the `n_global_blocks` first blocks of the sequence (the paper's internal construction, ITC);
- `n_window_blocks`: their own block and the blocks right before it;
- `n_random_blocks` of the blocks in between, or all of them if there are fewer;

up to their own position, as in the comparison of Based (Fig. 8). The defaults are those of the paper's base model: 2, 3
and 3 blocks.

The random blocks are a fixed function of `seed` and the number of the query's block, drawn without replacement. Later
tokens can attend to any past block, so the state is a growing KV cache, although `step` reads only (2 + 3 + 3) b of its
tokens. Blocks of packed documents are counted from the start of each document; they cost O(t^2).

Deviations: causal; the paper's window has two sides, and its global tokens see all tokens. All heads, and all layers
with the same config, share the random blocks, which the paper draws for each. The code released by Based has a window
of 3 b + 1 tokens at any offset, 2 b global tokens, and 3 b random pairs of query and key (each a 2 x 2 square), drawn
again in every call; its state size, 14 b d, counts 7 blocks.

Good at: Long documents with a few important places; one layer cannot reach keys outside the chosen blocks.
Paper: Zaheer et al. 2020, https://arxiv.org/abs/2007.14062
"""

import dataclasses
import functools
from typing import Literal, Self

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeInt, PositiveInt, Seed
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, MultiHeadMixer
from jaxzoo.mixers.attention.softmax_attention import (
    AttentionState,
    dense_attention,
    empty_cache,
    extend_cache,
    nan_beyond,
)
from jaxzoo.mixers.base import Capabilities, Context
from jaxzoo.ops.block_sparse_attention import block_sparse_attention, block_sparse_step
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Bool, Float, Int

BigBirdState = AttentionState
"""KV cache of whole blocks: slot `p` holds absolute position `p`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigBirdConfig(MultiHeadConfig):
    """Config of `BigBird`."""

    promises = Capabilities(growing_state=True, segments=True)

    positions: Literal["none", "rotary", "xpos"] = "none"
    """Position encoding."""
    block_size: PositiveInt = 64
    """Tokens per block, the paper's b."""
    n_global_blocks: NonNegativeInt = 2
    """Number of first blocks of the sequence, which all later tokens see."""
    n_window_blocks: PositiveInt = 3
    """Blocks of the window, including the token's own."""
    n_random_blocks: NonNegativeInt = 3
    """Random blocks, outside the global blocks and the window."""
    seed: Seed = 0
    """Seed of the choice of random blocks."""

    @property
    def blocks_seen(self) -> int:
        """Largest number of blocks that a query attends to."""
        return self.n_global_blocks + self.n_window_blocks + self.n_random_blocks

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            d_model=9,
            n_heads=2,
            n_kv_heads=1,
            head_dim=4,
            positions="rotary",
            block_size=2,
            n_global_blocks=1,
            n_window_blocks=2,
            n_random_blocks=2,
        )

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, and of two matmuls of every query with the keys in a row of the table, masked ones
        and padding included."""
        n = -(-length // self.block_size)
        keys = chosen_blocks(self, n).shape[1] * self.block_size * n * self.block_size / length
        return self.projection_flops + 4.0 * self.n_heads * self.head_width * keys


@functools.lru_cache(maxsize=64)
def chosen_blocks(config: BigBirdConfig, n: int) -> np.ndarray:
    """Blocks that each of the first `n` blocks sees, int32 `(n, min(blocks_seen, n))`, padded with -1.

    Row i depends on i and the config only.
    """
    rows = np.full((n, config.blocks_seen), -1, np.int32)
    for i in range(n):
        window = max(i - config.n_window_blocks + 1, 0)
        first = min(config.n_global_blocks, window)
        free = window - first
        count = min(config.n_random_blocks, free)
        # A named generator; numpy's default one may change with its version.
        order = np.argsort(np.random.Philox(key=[config.seed, i]).random_raw(free), kind="stable")
        seen = np.concatenate([np.arange(first), np.arange(window, i + 1), first + np.sort(order[:count])])
        rows[i, : len(seen)] = seen
    return rows[:, : min(config.blocks_seen, n)]


class BigBird(MultiHeadMixer):
    """Causal block-sparse attention; O(blocks_seen block_size) per token, in parallel and in `step`.

    Once the tokens of a row exceed the capacity, its outputs are NaN.
    """

    config: BigBirdConfig

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> BigBirdState:
        """Initial cache of `capacity` slots, rounded up to whole blocks.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        config, size = self.config, self.config.block_size
        return empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype, block_size=size)

    def mix(
        self, x: Float[Array, "*b d"], state: BigBirdState | None, context: Context
    ) -> tuple[Array, BigBirdState | None]:
        """Attends to `x` and, with a state, to the cache; then keys and values of `x` are rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the capacity of the cache.
        """
        size, tokens = self.config.block_size, x[:, None] if x.ndim == 2 else x
        here = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        q, k, v = self._project(tokens, here if state is None else state.position[:, None] + here)
        if state is None and context.segment_ids is not None:
            return self._merge(dense_attention(q, k, v, self._visible(context.segment_ids))), None
        if state is None:
            k, v = (jnp.pad(y, ((0, 0), (0, -y.shape[1] % size), (0, 0), (0, 0))) for y in (k, v))
            return self._merge(block_sparse_attention(q, k, v, self._chosen(k), block_size=size)), None
        after = extend_cache(state, k, v)
        past = after.k, after.v, self._chosen(after.k), state.position
        if x.ndim == 2:
            y = block_sparse_step(q[:, 0], *past, block_size=size)[:, None]
        else:
            y = block_sparse_attention(q, *past, block_size=size)
        y = nan_beyond(after, self._merge(y))
        return (y[:, 0] if x.ndim == 2 else y), after

    def _chosen(self, k: Float[Array, "b s g k"]) -> Int[Array, "n c"]:
        """Table for all blocks of the cache."""
        return jnp.asarray(chosen_blocks(self.config, k.shape[1] // self.config.block_size))

    def _visible(self, segment_ids: Int[Array, "b t"]) -> Bool[Array, "b t t"]:
        """Mask of the keys that each query sees; blocks are counted from the start of its document."""
        t = segment_ids.shape[1]
        n = -(-t // self.config.block_size)
        pattern = np.zeros((n, n + 1), bool)
        pattern[np.arange(n)[:, None], chosen_blocks(self.config, n)] = True  # -1 is the column after the last
        block = position_in_segment(segment_ids) // self.config.block_size
        here = jnp.arange(t, dtype=jnp.int32)
        visible = jnp.asarray(pattern[:, :n])[block[:, :, None], block[:, None, :]]
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        return visible & same & (here[None, :] <= here[:, None])[None]
