"""Gated linear attention (GLA, Yang et al. 2024): a decay per token and channel of the keys.

For each head (eqs. 3, 4 and sec. 4.4), with a low-rank map to the decays and tau = 16:

    log alpha_i = logsigmoid(x_i W_1 W_2 + b) / tau        S_i = Diag(alpha_i) S_{i-1} + k_i v_i^T
    o_i = S_i^T q_i / sqrt(k)                              y = (silu(x W_r + b_r) . concat(norm(o_h))) W_O

By default queries and keys have half the model width over all heads, and values the model width (the paper's d_k and
d_v). The norm of each head has a learned scale, shared by all heads: `head_norm="layer"` is the paper's LayerNorm
(without a shift), "rms" the norm of its public code, which also has no b_r (`gate_bias`). Based, Table 13, trains the
public code: `release`.

Good at: Text: it learns what to forget, channel by channel, with a state of fixed size.
Paper: Yang et al. 2024, https://arxiv.org/abs/2312.06635
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.head_norm import head_norm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedLinearAttentionConfig(MixerConfig):
    """Config of `GatedLinearAttention`."""

    promises = Capabilities(segments=True, sequence_parallel=True)
    size_fields = ("key_width", "value_width")

    n_heads: PositiveInt = 4
    """Heads."""
    key_width: PositiveInt | None = None
    """Total width of the queries, and of the keys, of all heads; None: d_model / 2."""
    value_width: PositiveInt | None = None
    """Total width of the values of all heads; None: d_model."""
    decay_rank: PositiveInt = 16
    """Rank of the map from the token to its decays."""
    decay_temperature: PositiveFloat = 16.0
    """Temperature tau; larger values decay more slowly."""
    head_norm: Literal["layer", "rms"] = "layer"
    """Norm of each head's output: LayerNorm (paper) or RMSNorm (public code)."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in that norm."""
    gate_bias: bool = True
    """Adds a bias to the projection of the output gate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model is not None:
            for field, width in (("key_width", self.keys), ("value_width", self.values)):
                rule = f"gives {width} channels, which must be a positive multiple of n_heads={self.n_heads}"
                self.require(field, width > 0 and width % self.n_heads == 0, rule)

    @classmethod
    def release(cls, **fields: object) -> Self:
        """Config of the public code, used in Based's Table 13."""
        return cls(head_norm="rms", gate_bias=False, **fields)  # type: ignore[arg-type]

    @property
    def keys(self) -> int:
        """`key_width`, with the default filled in."""
        return self.key_width or self.width // 2

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, key_width=6, value_width=10, decay_rank=3, decay_temperature=2.0)

    def flops_per_token(self, length: int) -> float:
        """Projections, scores of a chunk with their values, state update and read."""
        d, k, v = self.width, self.keys, self.values
        projections = 2.0 * (d * (2 * k + 3 * v) + self.decay_rank * (d + k))
        return projections + 2.0 * min(CHUNK, length) * (k + v) + 4.0 * k * v / self.n_heads


class GatedLinearAttentionState(NamedTuple):
    """Sums over the past."""

    s: Float[Array, "b h k v"]
    """Decayed sum of `k_j v_j^T`, float32."""


class GatedLinearAttention(Mixer):
    """Linear attention with data-dependent decays; the state has a fixed size, and `step` costs O(k v) per head.

    `q_proj`, `k_proj` (d, key_width), `v_proj`, `gate_proj` (d, value_width), `decay_down` (d, decay_rank), `decay_up`
    (decay_rank, key_width) with bias, `norm_scale` (value_width / n_heads,), `out_proj` (value_width, d).
    """

    config: GatedLinearAttentionConfig

    def __init__(self, config: GatedLinearAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, keys, values, std = config.width, config.keys, config.values, config.std
        axes = ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, keys, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, keys, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, values, axes=axes, std=std, rngs=rngs)
        self.gate_proj: nnx.Linear = linear(d, values, axes=axes, std=std, bias=config.gate_bias, rngs=rngs)
        self.decay_down: nnx.Linear = linear(d, config.decay_rank, axes=("embed", None), std=std, rngs=rngs)
        self.decay_up: nnx.Linear = linear(config.decay_rank, keys, axes=(None, "heads"), std=std, bias=True, rngs=rngs)
        self.norm_scale: nnx.Param[jax.Array] = parameter(jnp.ones((values // config.n_heads,)), (None,), decay=False)
        self.out_proj: nnx.Linear = linear(values, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> GatedLinearAttentionState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        heads = (config.n_heads, config.keys // config.n_heads, config.values // config.n_heads)
        return GatedLinearAttentionState(jnp.zeros((batch_size, *heads), jnp.float32))

    def mix(
        self, x: Float[Array, "*b d"], state: GatedLinearAttentionState | None, context: Context
    ) -> tuple[Array, GatedLinearAttentionState]:
        config = self.config
        logits = self.decay_up(self.decay_down(x)).astype(jnp.float32)
        log_decay = jax.nn.log_sigmoid(logits) / config.decay_temperature
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x), log_decay
        q, k, v, log_decay = (split_heads(y, config.n_heads) for y in projected)
        q, before = q * q.shape[-1] ** -0.5, None if state is None else LinearState(state.s, None)
        o, after = linear_attention_from(before, q, k, v, log_decay=log_decay, segment_ids=context.segment_ids)
        o = head_norm(o, config.head_norm, eps=config.norm_eps)
        y = (o * along_last(self.norm_scale[...], o)).reshape(*x.shape[:-1], config.values)
        return self.out_proj(jax.nn.silu(self.gate_proj(x)) * y), GatedLinearAttentionState(after.s)
