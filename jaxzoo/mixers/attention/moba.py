"""Mixture of block attention (MoBA, Lu et al. 2025): attention to the token's own block and to the best earlier ones.

    m_c = mean of the keys of block c        S_i = own block, and the n_selected - 1 earlier blocks of largest q_i . m_c
    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j        over j <= i in the blocks S_i

by one softmax. Each query head chooses for itself, after rotation; the choice has no gradient. Packed documents have
blocks of their own, each from its own start.

Form: the paper's, as in MoonshotAI/MoBA (61e456b), whose naive version and flash-linear-attention (bc3b101) choose the
same blocks from n_selected=2 on. With n_selected=1 the naive version sees its own block alone, as here; both efficient
versions then compute full attention. `fla`: the layer of flash-linear-attention, which adds an RMS norm of each head
(one scale (k,), eps 1e-6), and with `output_gate` the sigmoid of a map of rank k, without biases. That code decodes by
full attention; here all forms see the chosen blocks.

State: a KV cache, and the mean key of each block.

Good at: Long contexts at a small share of attention's reads; its cache grows with the text.
Paper: Lu et al. 2025 (MoBA), https://arxiv.org/abs/2502.13189
"""

import dataclasses
from typing import Any, Literal, Self

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.low_rank import LowRank
from jaxzoo.mixers.attention.block_means import (
    BlockMeansState as MoBAState,
    block_means_filter,
    empty_block_means,
    extend_block_means,
)
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.attention.softmax_attention import nan_beyond, next_positions
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.landmark_attention import Retrieval, landmark_attention, landmark_attention_from
from jaxzoo.ops.local_attention import keys_per_query
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoBAConfig(MultiHeadConfig):
    """Config of `MoBA`."""

    promises = Capabilities(growing_state=True, segments=True)

    positions: Literal["none", "rotary"] = "rotary"
    """How scores learn of positions."""
    qk_norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm of queries and keys."""
    block_size: PositiveInt = 64
    """Tokens of a block."""
    n_selected: PositiveInt = 4
    """Blocks that a query sees, its own among them."""
    output_norm: bool = False
    """RMS norm of each head's output, with one scale per channel for all heads, eps 1e-6."""
    output_gate: bool = False
    """Multiplies the normed heads by the sigmoid of a map of rank head_dim."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("output_gate", self.output_norm or not self.output_gate, "needs output_norm=True")

    @classmethod
    def fla(cls, **fields: Any) -> Self:
        """The layer of flash-linear-attention."""
        return cls(**{"block_size": 256, "output_norm": True, **fields})

    @property
    def retrieval(self) -> Retrieval:
        """Rule by which the op chooses earlier blocks."""
        return Retrieval(n_blocks=self.n_selected - 1, gate="none")

    @classmethod
    def tiny(cls) -> Self:
        heads = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "qk_norm": "rms"}
        return cls(d_model=9, **heads, qkv_bias=True, block_size=2, n_selected=3, output_norm=True, output_gate=True)

    def flops_per_token(self, length: int) -> float:
        """Projections, every query with the means of all earlier blocks, and two matmuls of it with the keys of its
        blocks, masked ones included."""
        h, width, blocks = self.n_heads, self.head_width, (length - 1) // self.block_size
        keys = keys_per_query(length, block_size=self.block_size, reach=0)
        keys += min(self.n_selected - 1, blocks) * self.block_size
        gate = 2.0 * width * (self.width + h * width) * self.output_gate
        return self.projection_flops + gate + 2.0 * h * width * blocks + 4.0 * h * width * keys


class MoBA(SteppedByPrefill):
    """Attention by blocks; O(head_dim (t / block_size + n_selected block_size)) per token and head.

    Besides the projections of attention, `out_norm.scale` (k,), `gate_proj.down` (d, k), `gate_proj.up` (k, h k). A row
    that runs past the cache gets NaN outputs from that call on.
    """

    config: MoBAConfig

    def __init__(self, config: MoBAConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        width = config.head_width
        if config.output_norm:
            self.out_norm: GatedNorm = GatedNorm(width, eps=1e-6, activation="sigmoid")
        if config.output_gate:
            self.gate_proj: LowRank = LowRank(config.width, width, config.n_heads * width, std=config.std, rngs=rngs)

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        q, k, v = self._project(x, jnp.arange(x.shape[1], dtype=jnp.int32)[None])
        mean = block_means_filter(self.config.block_size, self.config.kv_heads)
        y = landmark_attention(q, k, v, mean, segment_ids=context.segment_ids, retrieval=self.config.retrieval)
        return self._join(x, y)

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> MoBAState:
        """The empty state, of `capacity` slots, rounded up to whole blocks.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        return empty_block_means(self.config, batch_size, capacity, dtype, size=self.config.block_size, values=False)

    def prefill(
        self, x: Float[Array, "b t d"], state: MoBAState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], MoBAState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
        """
        q, k, v = self._project(x, next_positions(state, x.shape[1]))
        after = extend_block_means(state, k, v)
        y = landmark_attention_from(
            q, after.k, after.v, after.key_means, state.position, retrieval=self.config.retrieval
        )
        return nan_beyond(after, self._join(x, y)), after

    def _join(self, x: Float[Array, "b t d"], y: Float[Array, "b t h k"]) -> Float[Array, "b t d"]:
        """Norms and gates the heads, joins them and projects back to the model width."""
        if self.config.output_norm:
            y = self.out_norm(y, self.gate_proj(x).reshape(y.shape) if self.config.output_gate else None)
        return self._merge(y)
