"""Sliding window attention (Based, sec. 4.2): exact softmax attention to the last few tokens.

    y_i = sum_j softmax_j(q_i . k_j / sqrt(k)) v_j,     j = i - w + 1 .. i

`window=w` includes the token itself. Zoology's `block_size=w` and flash-attention's `(w, 0)` see one key more. The
released Based code's `window_size=W` sees `W // 2 + 1` keys: its 360m model has `window=129`, where the paper says 64.

The state is a ring buffer of the window. Based, App. E.2, eq. 11, counts `2 d min(N, w)` entries, ours has `2 g k w` at
any length: the same if g k = d and N >= w. Positions are rotary over the whole head, as in the released Based models.

Good at: Exact local comparisons in fixed memory; next to linear attention it is the other half of Based.
Paper: Arora et al. 2024 (Based), sec. 4.2, https://arxiv.org/abs/2402.18668
"""

import dataclasses
import functools
from typing import Literal, Self

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.probe import show_scores
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, MultiHeadMixer
from jaxzoo.mixers.base import Capabilities, Context
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float
from pallas_kernels.decode_step import window_step
from pallas_kernels.sliding_window import (
    SlidingWindowCache,
    empty_cache,
    keys_per_query,
    sharded_sliding_window_attention,
    sliding_window_attention,
)

SlidingWindowAttentionState = SlidingWindowCache
"""Ring buffer: keys (rotated to their absolute positions) and values `(b, window, g, k)`, position `(b,)`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlidingWindowAttentionConfig(MultiHeadConfig):
    """Config of `SlidingWindowAttention`."""

    promises = Capabilities(segments=True, sequence_parallel=True)
    size_fields = ("window",)

    positions: Literal["none", "rotary", "xpos"] = "rotary"
    """Position encoding."""
    window: PositiveInt = 64
    """Keys that a token sees, including its own."""

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            d_model=13, n_heads=4, n_kv_heads=2, head_dim=4, rotary_fraction=0.5, qkv_bias=True, out_bias=True, window=5
        )

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the projections, and of two matmuls of every query with the keys of its blocks in the `xla`
        implementation, masked keys included."""
        keys = keys_per_query(length, self.window)
        return self.projection_flops + 4.0 * self.n_heads * self.head_width * keys

    def papers_state_size(self, length: int) -> int:
        """Eq. 11: `2 d min(N, window)`; ours always holds `window` entries."""
        return 2 * self.width * min(length, self.window)


class SlidingWindowAttention(MultiHeadMixer):
    """Causal softmax attention to the last `window` tokens, at any length; O(window) per token."""

    config: SlidingWindowAttentionConfig

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> SlidingWindowAttentionState:
        config = self.config
        width = config.head_width
        return empty_cache(batch_size, config.window, config.kv_heads, width, width, dtype)

    def mix(
        self, x: Float[Array, "*b d"], state: SlidingWindowAttentionState | None, context: Context
    ) -> tuple[Array, SlidingWindowAttentionState | None]:
        tokens = x[:, None] if x.ndim == 2 else x
        here = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        q, k, v = self._project(tokens, here if state is None else state.position[:, None] + here)
        if state is not None and x.ndim == 2:
            y, state = window_step(state, q[:, 0], k[:, 0], v[:, 0])
            return self._merge(y[:, None])[:, 0], state
        attend = on_mesh(sliding_window_attention, sharded_sliding_window_attention, q, k)
        attend = functools.partial(attend, q, k, window=self.config.window)
        if state is None:
            attend = functools.partial(attend, segment_ids=context.segment_ids)
            show_scores(attend, v)
            return self._merge(attend(v)), None
        y, state = attend(v, initial_cache=state, return_cache=True)
        return self._merge(y), state
