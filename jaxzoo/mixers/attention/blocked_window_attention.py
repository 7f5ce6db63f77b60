"""Blocked window attention (Zoology, App. F; Child et al. 2019, Qiu et al. 2019): causal attention inside blocks.

The sequence is split into blocks of w tokens, and each token attends to its own block up to itself:

    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j,     j = w floor(i / w) .. i

The first token of a block sees only itself. With `look_back` a token also sees the whole previous block, j = w (floor(i
/ w) - 1) .. i: between w + 1 and 2 w keys. `block_size` is the paper's window size w. Blocks of packed documents are
counted from the start of each document.

The state holds one or two blocks: slot p mod the number of slots holds position p. Based, App. E.2, has no formula for
it. Positions are rotary or none. Deviation: biases are off by default.

Good at: Exact recall inside a block, in fixed memory; nothing beyond it.
Paper: Child et al. 2019; Zoology, App. F, https://arxiv.org/abs/1904.10509
"""

import dataclasses
from typing import Literal, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, MultiHeadMixer
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.local_attention import attend_one, keys_per_query, local_attention
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.sliding_window import SlidingWindowCache, empty_cache
from pallas_kernels.sliding_window.cache import append, append_one, history, rounded

BlockedWindowAttentionState = SlidingWindowCache
"""Ring buffer: keys (rotated to their absolute positions) and values `(b, slots, g, k)`, position `(b,)`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockedWindowAttentionConfig(MultiHeadConfig):
    """Config of `BlockedWindowAttention`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    positions: Literal["none", "rotary", "xpos"] = "none"
    """Position encoding."""
    block_size: PositiveInt = 64
    """Tokens per block."""
    look_back: bool = False
    """A token also sees the block before its own."""

    @property
    def slots(self) -> int:
        """Tokens that the state holds."""
        return self.block_size * (1 + self.look_back)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=9, n_heads=2, n_kv_heads=1, head_dim=4, positions="rotary", block_size=3, look_back=True)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, and of two matmuls of every query with the keys of its blocks, masked ones and the
        padding of the last block included."""
        keys = keys_per_query(length, block_size=self.block_size, reach=self.slots - self.block_size)
        return self.projection_flops + 4.0 * self.n_heads * self.head_width * keys


class BlockedWindowAttention(MultiHeadMixer):
    """Causal softmax attention inside blocks; O(block_size) per token, in parallel and in `step`."""

    config: BlockedWindowAttentionConfig

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        size = self.config.block_size
        q, k, v = self._project(x, jnp.arange(x.shape[1], dtype=jnp.int32)[None, :])
        if context.segment_ids is not None:
            blocks = position_in_segment(context.segment_ids) // size
            return self._merge(self._attend(q, k, v, blocks, context.segment_ids))
        # Blocks coincide with the blocks of the op.
        return self._merge(local_attention(q, k, v, block_size=size, reach=self.config.slots - size)[0])

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> BlockedWindowAttentionState:
        config = self.config
        return empty_cache(batch_size, config.slots, config.kv_heads, config.head_width, config.head_width, dtype)

    def prefill(
        self, x: Float[Array, "b t d"], state: BlockedWindowAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], BlockedWindowAttentionState]:
        past, t = self.config.slots - 1, x.shape[1]
        positions = state.position[:, None] + jnp.arange(-past, t, dtype=jnp.int32)[None, :]
        q, k, v = self._project(x, positions[:, past:])
        k, v = rounded(state, k, v)
        keys, values = (
            jnp.concatenate([old, new], axis=1) for old, new in zip(history(state, q.dtype), (k, v), strict=True)
        )
        y = self._attend(q, keys, values, positions // self.config.block_size, jnp.minimum(positions, 0))
        return self._merge(y), append(state, k, v)

    def step(
        self, x_t: Float[Array, "b d"], state: BlockedWindowAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], BlockedWindowAttentionState]:
        config, position = self.config, state.position[:, None]
        q, k, v = (y[:, 0] for y in self._project(x_t[:, None], position))
        after = append_one(state, k, v)
        age = (position - jnp.arange(config.slots, dtype=jnp.int32)[None, :]) % config.slots
        since = position % config.block_size + config.look_back * config.block_size
        y, _ = attend_one(q, after.k, after.v, age <= jnp.minimum(since, position))
        return self._merge(y[:, None])[:, 0], after

    def _attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, blocks: Int[Array, "b s"], documents: Int[Array, "b s"]
    ) -> Float[Array, "b t h k"]:
        """Attention by block numbers; blocks may start anywhere and so overlap one more block of the op."""
        size, reach = self.config.block_size, self.config.slots - 1
        limits = (int(self.config.look_back), 0)
        return local_attention(q, k, v, (blocks, documents), limits, block_size=size, reach=reach)[0]
