"""PaTH attention (Yang et al. 2025): positions are products of Householder-like maps that the tokens choose.

For every head, with a direction and a strength per token, and no other positions:

    R_l = I - beta_l w_l w_l^T          s_ij = (k_j . R_{j+1} .. R_i q_i + sum_{l=j+1..i} g_l) / sqrt(k)
    y_i = sum_{j <= i} softmax_j(s_ij) v_j

    w = l2(silu(conv(x W_1 W_2)))        beta = 2 sigmoid(x W_beta + b_beta)

The map of the query's own token acts, that of the key's does not. With `forget_gate` (PaTH-FoX), g = logsigmoid(x W_g +
b_g) per query head; without it g = 0. Here the gate is divided by sqrt(k) like the scores; in FoX it is not.

Form: flash-linear-attention (bc3b101), the authors' code. Its conventions: beta in (0, 2), so that a map may reflect;
l2 divides by sqrt(sum of squares + 1e-6); the convolution of w has 3 taps and no bias; `w_rank=None` has one map in
place of W_1 W_2; `n_taps=1` leaves convolution and SiLU out; `qk_norm` is an RMS norm per head with one scale (k,) for
all heads and eps 1e-5. w and beta belong to heads of keys.

Deviations: there, prefill of a prompt leaves out the norm of queries and keys, which training has; ours has it always.
Turned keys are kept in float32, where that code rounds them to the activations' dtype after every token.

State: a KV cache, its keys turned by all later tokens; sums of gates; the last n_taps - 1 directions.

Good at: State tracking within attention, as delta rules do it; its cache grows with the text.
Paper: Yang et al. 2025 (PaTH), https://arxiv.org/abs/2505.16381
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.low_rank import LowRank
from jaxzoo.layers.probe import show_scores
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig, SteppedByPrefill
from jaxzoo.mixers.attention.softmax_attention import check_fits, empty_cache, nan_beyond
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context
from jaxzoo.ops.path_attention import CHUNK, PathCache, PathTokens, path_attention
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathAttentionConfig(MultiHeadConfig):
    """Config of `PathAttention`."""

    promises = Capabilities(growing_state=True, segments=True)

    positions: Literal["none"] = "none"
    """The maps are the positions."""
    qk_norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm of queries and keys."""
    w_rank: PositiveInt | None = 32
    """Rank of the map from the token to its directions; None: a full one."""
    n_taps: PositiveInt = 3
    """Taps of the convolution of the directions; 1: neither convolution nor SiLU."""
    forget_gate: bool = False
    """Adds the sum of log gates to the scores (PaTH-FoX)."""

    @classmethod
    def tiny(cls) -> Self:
        heads = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "qk_norm": "rms"}
        return cls(d_model=7, **heads, w_rank=5, forget_gate=True, out_bias=True)

    def flops_per_token(self, length: int) -> float:
        """Projections; per chunk of c tokens the products of w and w, of queries and w, and the solve; and for every
        key, the masked half included, two products with queries and values, two with w, and two of c numbers."""
        d, h, g, k, c = self.width, self.n_heads, self.kv_heads, self.head_width, min(CHUNK, length)
        rank = self.w_rank
        maps = 2.0 * (d * g * k if rank is None else rank * (d + g * k)) + 2.0 * d * (g + h * self.forget_gate)
        conv = g * k * conv_flops(self.n_taps, length) * (self.n_taps > 1)
        return (
            self.projection_flops
            + maps
            + conv
            + 2.0 * c * (g + h) * k
            + 2.0 * length * (2 * h + 2 * g) * k
            + (2.0 * length * c * (g + h))
        )


class PathAttentionState(NamedTuple):
    """The past. Slot `p` holds absolute position `p`; slots to come hold zeros."""

    k: Float[Array, "b s g k"]
    """Keys, multiplied by the maps of all tokens after them, float32; `s` is the capacity."""
    v: Float[Array, "b s g k"]
    """Values, in the dtype given."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""
    log_decay: Float[Array, "b h s"]
    """Sum of the log gates after each key, float32; empty, (b, 0, s), without a forget gate."""
    history: Float[Array, "b w-1 gk"]
    """The last `n_taps - 1` directions before their convolution, oldest first, in the dtype given."""


class PathAttention(SteppedByPrefill):
    """Causal softmax attention with data-dependent positions; `step` costs O(capacity) per token.

    Besides the projections of attention, `w_proj` (d, g k), or `w_proj.down` (d, w_rank) and `w_proj.up` (w_rank, g k);
    `w_conv.taps` (n_taps, g k); `beta_proj` (d, g) and `forget_proj` (d, h), both with bias. A row that runs past the
    cache gets NaN outputs from that call on.
    """

    config: PathAttentionConfig

    def __init__(self, config: PathAttentionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        d, std, axes, width = config.width, config.std, ("embed", "heads"), config.kv_heads * config.head_width
        self.w_proj: nnx.Linear | LowRank = (
            linear(d, width, axes=axes, std=std, rngs=rngs)
            if config.w_rank is None
            else LowRank(d, config.w_rank, width, std=std, rngs=rngs)
        )
        if config.n_taps > 1:
            self.w_conv: ShortConv = ShortConv(width, config.n_taps, bias=False, n_plain=0, axis="heads", rngs=rngs)
        self.beta_proj: nnx.Linear = linear(d, config.kv_heads, axes=axes, std=std, bias=True, rngs=rngs)
        if config.forget_gate:
            self.forget_proj: nnx.Linear = linear(d, config.n_heads, axes=axes, std=std, bias=True, rngs=rngs)

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        if not x.size:
            return x
        ids, state = context.segment_ids, self.init_state(x.shape[0], capacity=x.shape[1], dtype=x.dtype)
        tokens, _ = self._tokens(x, None, ids)

        def attend(v: jax.Array) -> jax.Array:
            return path_attention(tokens._replace(v=v), PathCache(*state[:4])._replace(v=jnp.zeros_like(v)), ids)[0]

        show_scores(attend, tokens.v)
        return self._merge(attend(tokens.v))

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> PathAttentionState:
        """The empty cache, of `capacity` slots; keys are float32 whatever `dtype` says.

        Raises:
          ValueError: `capacity` is None or not positive.
        """
        config, g, width = self.config, self.config.kv_heads, self.config.head_width
        k, v, position = empty_cache(batch_size, capacity, g, width, dtype)
        log_decay = jnp.zeros((batch_size, config.n_heads * config.forget_gate, k.shape[1]), jnp.float32)
        history = empty_history(batch_size, config.n_taps, g * width, dtype)
        return PathAttentionState(k.astype(jnp.float32), v, position, log_decay, history)

    def prefill(
        self, x: Float[Array, "b t d"], state: PathAttentionState, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], PathAttentionState]:
        """Attends to the cache and to `x`, whose values are first rounded to the cache's dtype.

        Raises:
          ValueError: `t` exceeds the slots of the cache.
        """
        cache = PathCache(*state[:4])
        check_fits(x.shape[1], cache.k.shape[1])
        tokens, history = self._tokens(x, state.history, None)
        assert history is not None
        y, cache = path_attention(tokens, cache)
        return nan_beyond(cache, self._merge(y)), PathAttentionState(*cache, history)

    def _tokens(
        self, x: Float[Array, "b t d"], history: Array | None, segment_ids: Int[Array, "b t"] | None
    ) -> tuple[PathTokens, Array | None]:
        """Inputs of the op, and the history after them."""
        config = self.config
        q, k, v = self._project(x, jnp.zeros((1, x.shape[1]), jnp.int32))
        w = self.w_proj(x)
        if config.n_taps > 1:
            w, history = self.w_conv(w, history, segment_ids=segment_ids)
        w = split_heads(w, config.kv_heads).astype(jnp.float32)
        w = w * jax.lax.rsqrt(jnp.square(w).sum(-1, keepdims=True) + np.float32(1e-6))
        beta = 2 * jax.nn.sigmoid(self.beta_proj(x).astype(jnp.float32))
        gate = None
        if config.forget_gate:
            gate = jax.nn.log_sigmoid(self.forget_proj(x).astype(jnp.float32))
        return PathTokens(q, k, v, w, beta, gate), history
