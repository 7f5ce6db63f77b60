"""Native sparse attention (NSA, Yuan et al. 2025): block means, chosen blocks and a window, mixed by gates.

For every head, with blocks of B tokens, whose means of keys and of values are k^c and v^c:

    cmp_i = sum_c softmax_c(q_i . k^c / sqrt(k)) v^c        over blocks that end at i or before it; 0 if there is none
    slc_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j        over j <= i in the n chosen blocks
    swa_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j        over i - window < j <= i
    y_i = g1 cmp_i + g2 slc_i + g3 swa_i,  g = sigmoid(x_i W_g)

The query heads of a head of keys choose together: by the mean of their softmaxes over the means; the own block, the one
before it and the first of the document are always among the n. The choice has no gradient; gates g are per query head.

Form: flash-linear-attention (bc3b101). Where the paper compresses overlapping blocks by an MLP with positions, that
code takes means of rotated keys, of the blocks that it also chooses from, and has one k and v for all three branches.
W_g has columns (h, 3), no bias; its kernels need groups of 16 heads, which is no rule here. Left out: zoology's form
(d88d6f5), which has a norm before, an MLP for the means, a learned first block, blocks strictly before the query, and
window + 1 tokens; its default `causal=False` lets the window see `window` tokens of the future.

State: a KV cache, and the mean key and value of each block.

Good at: Long contexts at a small share of attention's reads, learned from the start; its cache grows with the text.
Paper: Yuan et al. 2025 (NSA), https://arxiv.org/abs/2502.11089
"""

import dataclasses
import functools
from typing import Literal, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.linear import linear
from jaxzoo.mixers.attention.block_means import (
    BlockMeansState as NativeSparseAttentionState,
    empty_block_means,
    extend_block_means,
)
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.attention.softmax_attention import dense_attention, nan_beyond, next_positions
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.landmark_attention import Retrieval, blocks_between, blocks_of_documents, join, retrieved
from jaxzoo.ops.landmarks import take
from jaxzoo.ops.local_attention import keys_per_query, local_attention
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class NativeSparseAttentionConfig(MultiHeadConfig):
    """Config of `NativeSparseAttention`."""

    promises = Capabilities(growing_state=True, segments=True)

    positions: Literal["none", "rotary"] = "rotary"
    """How scores learn of positions."""
    block_size: PositiveInt = 64
    """Tokens of a block."""
    n_selected: PositiveInt = 16
    """Blocks that a query sees whole, the three that are always chosen among them."""
    window: PositiveInt = 512
    """Keys that the window sees, the token's own among them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("n_selected", self.n_selected >= 3, "must be at least 3: the first, the own and the last block")

    @property
    def retrieval(self) -> Retrieval:
        """Rule by which the op chooses earlier blocks."""
        return Retrieval(n_blocks=self.n_selected - 1, gate="none", grouped=True)

    @classmethod
    def tiny(cls) -> Self:
        heads = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "qkv_bias": True}
        return cls(d_model=9, **heads, block_size=2, n_selected=4, window=3)

    def flops_per_token(self, length: int) -> float:
        """Projections, every query with the means of all blocks, twice, and with their values, and two matmuls of it
        with the keys of its blocks, of twice its own block and of its window, masked ones included."""
        h, width, size, blocks = self.n_heads, self.head_width, self.block_size, length // self.block_size
        keys = keys_per_query(length, block_size=size, reach=size - 1) + min(self.n_selected - 1, blocks) * size
        keys += keys_per_query(length, block_size=self.window, reach=self.window - 1)
        return self.projection_flops + 6.0 * h * self.width + 6.0 * h * width * blocks + 4.0 * h * width * keys


class NativeSparseAttention(SteppedByPrefill):
    """Attention by blocks; O(head_dim (t / block_size + n_selected block_size + window)) per token and head.

    Besides the projections of attention, `gate_proj` (d, h 3). A row that runs past the cache gets NaN outputs from
    that call on.
    """

    config: NativeSparseAttentionConfig

    def __init__(self, config: NativeSparseAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.gate_proj: nnx.Linear = linear(
            config.width, 3 * config.n_heads, axes=("embed", "heads"), std=config.std, rngs=rngs
        )

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        (b, t, _), size, window = x.shape, self.config.block_size, self.config.window
        if not x.size:
            return x
        q, k, v = self._project(x, jnp.arange(t, dtype=jnp.int32)[None])
        ids = jnp.zeros((b, t), jnp.int32) if context.segment_ids is None else context.segment_ids
        place = position_in_segment(ids)
        own = local_attention(q, k, v, (place // size, ids), (0, 0), block_size=size, reach=size - 1)
        near = local_attention(q, k, v, (place, ids), (window - 1, 0), block_size=window, reach=window - 1)[0]
        begins, start, stop = blocks_of_documents(place, t // size, size)
        inside = (begins[..., None] + jnp.arange(size, dtype=jnp.int32)[None, None]).reshape(b, -1)
        blocks = tuple(take(y, inside).reshape(b, -1, size, *y.shape[2:]) for y in (k, v))
        means = tuple(y.astype(jnp.float32).mean(2) for y in blocks)
        return self._join(x, *self._far(q, own, blocks, means, (start, stop, start + (place + 1) // size)), near)

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> NativeSparseAttentionState:
        """The empty state, of `capacity` slots, rounded up to whole blocks.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        return empty_block_means(self.config, batch_size, capacity, dtype, size=self.config.block_size, values=True)

    def prefill(
        self, x: Float[Array, "b t d"], state: NativeSparseAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], NativeSparseAttentionState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
        """
        size, window, at = self.config.block_size, self.config.window, next_positions(state, x.shape[1])
        q, k, v = self._project(x, at)
        after = extend_block_means(state, k, v)
        if not x.size:
            return x, after
        cache = after.k.astype(q.dtype), after.v.astype(q.dtype)

        def local(unit: int, limit: int, size: int) -> tuple[jax.Array, jax.Array]:
            seen = state.position[:, None] + jnp.arange(1 - size, x.shape[1], dtype=jnp.int32)[None]
            keys, values = (take(y, jnp.clip(seen, 0, y.shape[1] - 1)) for y in cache)
            labels = (seen // unit, (seen >= 0).astype(jnp.int32))
            return local_attention(q, keys, values, labels, (limit, 0), block_size=size, reach=size - 1)

        own, near = local(size, 0, size), local(1, window - 1, window)[0]
        blocks = tuple(y.reshape(y.shape[0], -1, size, *y.shape[2:]) for y in cache)
        eligible = (jnp.zeros_like(at), at // size, (at + 1) // size)
        far = self._far(q, own, blocks, (after.key_means, after.value_means), eligible)
        return nan_beyond(after, self._join(x, *far, near)), after

    def _far(
        self,
        q: Float[Array, "b t h k"],
        own: tuple[jax.Array, jax.Array],
        blocks: tuple[jax.Array, ...],
        means: tuple[jax.Array, ...],
        eligible: tuple[Int[Array, "b t"], ...],
    ) -> tuple[jax.Array, jax.Array]:
        """cmp and slc of the module docstring, from the own block's attention and the blocks of each row.

        Args:
          q: queries.
          own: attention to the own block alone, and its lse.
          blocks: keys and values `(b, n, size, g, k)`.
          means: of keys and of values `(b, n, g, k)`.
          eligible: numbers of the first block of the document, of the own block, and of the first that does not end
            at the query or before it.
        """
        if blocks[0].shape[1] == 0:
            return jnp.zeros_like(q), own[0]
        visible = blocks_between(eligible[0], eligible[2], blocks[0].shape[1])
        some = visible.any(-1, keepdims=True)
        mean_k, mean_v = (y.astype(q.dtype) for y in means)
        compressed = dense_attention(q, mean_k, mean_v, visible | ~some)
        chosen = retrieved(q, q, blocks[0], blocks[1], means[0], eligible, self.config.retrieval)
        return jnp.where(some[..., None], compressed, 0), join(own, chosen, q.dtype)

    def _join(self, x: Float[Array, "b t d"], *branches: Float[Array, "b t h k"]) -> Float[Array, "b t d"]:
        """Gates the branches, joins the heads and projects back to the model width."""
        gates = jax.nn.sigmoid(self.gate_proj(x)).reshape(*x.shape[:2], self.config.n_heads, 3)
        parts = [gates[..., i, None] * y for i, y in enumerate(branches)]
        return self._merge(functools.reduce(jnp.add, parts))
