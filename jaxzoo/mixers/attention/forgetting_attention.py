"""Forgetting attention (FoX, Lin et al. 2025): softmax attention whose scores fade by a learned forget gate.

For every head, with a gate per token and head (eqs. 4 to 6):

    g_i = logsigmoid(x_i w_f + b_f)        d_ij = sum_{l=j+1..i} g_l
    y_i = sum_{j <= i} softmax_j(q_i . k_j / sqrt(k) + d_ij) v_j

The gate of the key's own token does not act on it, and the gates are not scaled by 1 / sqrt(k) (in PaTH they are). Such
attention needs no positions; `positions="rotary"` adds them. The defaults are the paper's layer for the LLaMA
architecture.

`pro`: the paper's Pro layer. Queries and keys have an RMS norm per head (`qk_norm`), keys and values mix with those of
the token before, before that norm (`shift`, one share per token and head of keys), and the heads are normed and gated:

    k_i = a_i k~_{i-1} + (1 - a_i) k~_i,  a_i = sigmoid(x_i w_a)        y = (rms(o) . sigmoid(x W_g)) W_O

with k~_0 = 0; the same for v with a share of its own.

Form: the authors' code (forgetting-transformer 883f260); flash-linear-attention (bc3b101) computes the same without
`shift` and `output_norm`, and adds `qkv_bias` and groups of heads. As there: norms of queries and keys have a scale per
channel of every head, (h k,), and eps 1e-5, the norm of the output eps 1e-6; shares a have no bias, the gate has one,
which starts at 0. Left out: pruning of small weights, gates that do not depend on the token, and one norm's scale for
all heads, which the authors call incorrect.

The state is the KV cache, the sum d of every key, and with `shift` the last k~ and v~.

Good at: Attention that extrapolates to longer texts, for it learns what to forget; its cache grows with the text.
Paper: Lin et al. 2025 (FoX), https://arxiv.org/abs/2503.02130
"""

import dataclasses
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.token_shift import token_shift
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.attention.softmax_attention import (
    AttentionState,
    cached,
    dense_attention,
    empty_cache,
    extend_cache,
    nan_beyond,
    next_positions,
    slots_of,
    visible_slots,
    visible_tokens,
)
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.forget_bias import forget_bias
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgettingAttentionConfig(MultiHeadConfig):
    """Config of `ForgettingAttention`."""

    promises = Capabilities(growing_state=True, segments=True)

    positions: Literal["none", "rotary"] = "none"
    """Position encoding of queries and keys, in addition to the forget gate."""
    qk_norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm of queries and keys."""
    shift: bool = False
    """Mixes keys and values with those of the token before."""
    output_norm: bool = False
    """RMS norm of each head's output, with a learned scale per channel of every head."""
    norm_eps: NonNegativeFloat = 1e-6
    """Added to the mean square in that norm."""
    output_gate: bool = False
    """Multiplies the output of the heads by the sigmoid of a linear function of the token."""

    @classmethod
    def pro(cls, **fields: Any) -> Self:
        """The Pro layer of the paper."""
        return cls(**{"qk_norm": "rms", "shift": True, "output_norm": True, "output_gate": True, **fields})

    @classmethod
    def tiny(cls) -> Self:
        heads = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "positions": "rotary"}
        return cls.pro(d_model=9, **heads, rotary_fraction=0.5, qkv_bias=True)

    def flops_per_token(self, length: int) -> float:
        """Projections, and two matmuls of every query with all `length` keys: the masked half counts too."""
        h, width = self.n_heads, self.head_width
        more = self.n_heads + 2 * self.kv_heads * self.shift + h * width * self.output_gate
        return self.projection_flops + 2.0 * self.width * more + 4.0 * h * width * length


class ForgettingAttentionState(NamedTuple):
    """The past. Slot `p` holds absolute position `p`; unwritten slots must be finite."""

    k: Float[Array, "b s g k"]
    """Keys, shifted, normed and rotated, in the dtype given; `s` is the capacity."""
    v: Float[Array, "b s g k"]
    """Values, shifted, likewise."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""
    log_decay: Float[Array, "b h s"]
    """d of each key at the last token seen, float32; 0 of keys to come."""
    last_k: Float[Array, "b gk"]
    """The last key before its shift, in the dtype given; empty, (b, 0), without `shift`."""
    last_v: Float[Array, "b gk"]
    """The last value, likewise."""


class ForgettingAttention(SteppedByPrefill):
    """Causal softmax attention with a forget gate; `step` and `prefill` cost O(capacity) per token.

    Besides the projections of attention, `forget_proj` (d, h) with bias; `k_shift`, `v_shift` (d, g); `q_norm.scale`
    (h k,), `k_norm.scale` (g k,); `gate_proj` (d, h k); `out_norm.scale` (h k,). A row that runs past the cache gets
    NaN outputs from that call on.
    """

    config: ForgettingAttentionConfig

    def __init__(self, config: ForgettingAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        d, h, g, std, axes = config.width, config.n_heads, config.kv_heads, config.std, ("embed", "heads")
        width = h * config.head_width
        self.forget_proj: nnx.Linear = linear(d, h, axes=axes, std=std, bias=True, rngs=rngs)
        if config.shift:
            self.k_shift: nnx.Linear = linear(d, g, axes=axes, std=std, rngs=rngs)
            self.v_shift: nnx.Linear = linear(d, g, axes=axes, std=std, rngs=rngs)
        if config.qk_norm == "rms":
            kv_width, eps = g * config.head_width, config.qk_norm_eps
            self.q_norm: GatedNorm = GatedNorm(width, eps=eps, groups=h, axis="heads")
            self.k_norm: GatedNorm = GatedNorm(kv_width, eps=eps, groups=g, axis="heads")
        if config.output_gate:
            self.gate_proj: nnx.Linear = linear(d, width, axes=axes, std=std, rngs=rngs)
        if config.output_norm:
            self.out_norm: GatedNorm = GatedNorm(
                width, eps=config.norm_eps, groups=h, activation="sigmoid", axis="heads"
            )

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        here, ids = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :], context.segment_ids
        q, k, v = self._parts(x, here, self.k_proj(x), self.v_proj(x), (None, None), ids)
        older = jnp.zeros((x.shape[0], self.config.n_heads, x.shape[1]), jnp.float32)
        bias, _ = forget_bias(self._log_gate(x), here, here, older)
        return self._join(x, dense_attention(q, k, v, visible_tokens(here, ids), bias))

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> ForgettingAttentionState:
        """Returns an empty cache of `capacity` tokens.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        config = self.config
        cache = empty_cache(batch_size, capacity, config.kv_heads, config.head_width, dtype)
        log_decay = jnp.zeros((batch_size, config.n_heads, cache.k.shape[1]), jnp.float32)
        last = jnp.zeros((batch_size, config.kv_heads * config.head_width * config.shift), dtype)
        return ForgettingAttentionState(*cache, log_decay=log_decay, last_k=last, last_v=last)

    def prefill(
        self, x: Float[Array, "b t d"], state: ForgettingAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], ForgettingAttentionState]:
        """Attends to the cache and to `x`, whose keys and values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
        """
        cache, k, v = AttentionState(*state[:3]), self.k_proj(x), self.v_proj(x)
        positions, last = next_positions(cache, x.shape[1]), (state.last_k, state.last_v)
        if self.config.shift:
            before = tuple(y.astype(x.dtype) for y in last)
            after = [jnp.concatenate([old[:, None], y], axis=1)[:, -1] for old, y in zip(before, (k, v), strict=True)]
            last = tuple(y.astype(state.k.dtype) for y in after)
        else:
            before = (None, None)
        q, k, v = self._parts(x, positions, k, v, before, None)
        cache = extend_cache(cache, k, v)
        bias, log_decay = forget_bias(self._log_gate(x), positions, slots_of(cache), state.log_decay)
        y = self._join(x, dense_attention(q, *cached(cache, q.dtype), visible_slots(cache, positions), bias))
        return nan_beyond(cache, y), ForgettingAttentionState(*cache, log_decay, *last)

    def _parts(
        self,
        x: Float[Array, "b t d"],
        positions: Int[Array, "b t"],
        k: Float[Array, "b t gk"],
        v: Float[Array, "b t gk"],
        last: tuple[Array | None, ...],
        segment_ids: Int[Array, "b t"] | None,
    ) -> tuple[jax.Array, ...]:
        """Queries, keys and values by head, after shift, norm and rotation; `last`: k and v of the token before."""
        config, q = self.config, self.q_proj(x)
        if config.shift:
            shares = self.k_shift(x), self.v_shift(x)
            k, v = (_shifted(y, a, old, segment_ids) for y, a, old in zip((k, v), shares, last, strict=True))
        if config.qk_norm != "none":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (split_heads(y, n) for y, n in ((q, config.n_heads), (k, config.kv_heads), (v, config.kv_heads)))
        return self._rotated(q, positions), self._rotated(k, positions, keys=True), v

    def _log_gate(self, x: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        return jax.nn.log_sigmoid(self.forget_proj(x).astype(jnp.float32))

    def _join(self, x: Float[Array, "b t d"], y: Float[Array, "b t h k"]) -> Float[Array, "b t d"]:
        """Norms and gates the heads, and projects back to the model width."""
        y = y.reshape(*y.shape[:2], self.config.n_heads * self.config.head_width)
        gate = self.gate_proj(x) if self.config.output_gate else None
        if self.config.output_norm:
            return self.out_proj(self.out_norm(y, gate))
        return self.out_proj(y if gate is None else y * jax.nn.sigmoid(gate))


def _shifted(
    y: Float[Array, "b t gk"], logits: Float[Array, "b t g"], last: Array | None, segment_ids: Array | None
) -> Float[Array, "b t gk"]:
    """`a y_{i-1} + (1 - a) y_i` with `a = sigmoid(logits)` per head."""
    share = jax.nn.sigmoid(logits.astype(jnp.float32)).astype(y.dtype)[..., None]
    old = split_heads(token_shift(y, last, segment_ids=segment_ids), logits.shape[-1])
    return (share * old + (1 - share) * split_heads(y, logits.shape[-1])).reshape(y.shape)
