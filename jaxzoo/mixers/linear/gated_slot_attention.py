"""Gated slot attention (GSA, Zhang et al. 2024): softmax attention to a fixed number of slots that forget.

For every head, with m slots for keys and for values (sec. 3):

    g_i = logsigmoid(x_i W_f) / 8        s_i = 1 - exp(g_i)        q, k, v = silu(x W_q), silu(x W_k), silu(x W_v)
    Hk_i = Hk_{i-1} Diag(exp(g_i)) + k_i s_i^T        Hv_i = Diag(exp(g_i)) Hv_{i-1} + s_i v_i^T
    o_i = Hv_i^T softmax(Hk_i^T q_i)                  y = (scale . rms(silu(concat(o_h)))) W_O

`abc`: ABC (Peng et al. 2022, https://arxiv.org/abs/2110.02488), the case in which every slot holds a softmax over the
past of its own logits, x_i W_f clamped to +-32. Then s_i = exp(x - z_i) and g_i = z_{i-1} - z_i with the running
logarithm z of the sum of exp(x). The layer of the public code has rotary queries and keys of half the width, no SiLU,
q / sqrt(k), and `silu(x W_r) . rms(o)` per head with a scale (v,) for all heads.

Form: flash-linear-attention (bc3b101), the authors' code. Its conventions: q is not scaled in GSA's layer (`scaled`
divides by sqrt(k), as its op does by default); GSA's norm is over all heads, after the SiLU, eps 1e-5; a head has as
many slots as channels of keys unless `n_slots` says otherwise. That code ignores `norm_eps`, `use_norm` and
`use_output_gate` of its GSA layer; here the eps is read. Left out: its short convolutions, other feature maps, ABC's
input gate.

State: Hk and Hv, m (k + v) numbers per head of keys; with `abc` also z, m numbers.

Good at: Recall at a state of fixed size, with softmax over slots in place of a plain sum.
Paper: Zhang et al. 2024 (GSA), https://arxiv.org/abs/2409.07146
"""

import dataclasses
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.rotary import rotary
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK
from jaxzoo.ops.slot_attention import CHUNK as SLOT_CHUNK, SlotState, SlotTokens, slot_attention, softmax_over_time
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedSlotAttentionConfig(MixerConfig):
    """Config of `GatedSlotAttention`."""

    promises = Capabilities(segments=True)

    n_heads: PositiveInt = 4
    """Query heads."""
    n_kv_heads: PositiveInt | None = None
    """Heads of keys, values and slots, each serving n_heads / n_kv_heads neighbouring query heads; None: n_heads."""
    key_width: PositiveInt | None = None
    """Width of the queries of all heads together; None: d_model."""
    value_width: PositiveInt | None = None
    """Width of the outputs of all heads together; None: d_model."""
    n_slots: PositiveInt | None = None
    """Slots of a head; None: the key width of a head."""
    slots: Literal["gated", "softmax"] = "gated"
    """How slots are written: by a forget gate (GSA), or as a softmax over the past (ABC)."""
    gate_temperature: PositiveFloat = 8.0
    """Divides the log gates of gated slots: the larger, the slower they forget."""
    clamp: PositiveFloat = 32.0
    """Bound of the logits of softmax slots."""
    activation: bool = True
    """SiLU on queries, keys and values."""
    rotary: bool = False
    """Rotates queries and keys to their positions, by halves, base 10000."""
    scaled: bool = False
    """Divides q by the square root of a head's width."""
    output: Literal["norm", "gated_norm"] = "norm"
    """RMS norm over all heads of silu(o), or over each head of o, times silu of a gate."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in that norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("n_kv_heads", self.n_heads % self.kv_heads == 0, f"must divide n_heads={self.n_heads}")
        if self.d_model is not None:
            for field, width in (("key_width", self.keys), ("value_width", self.values)):
                rule = f"gives {width} channels, which must be a multiple of n_heads={self.n_heads}"
                self.require(field, width % self.n_heads == 0, rule)
            even = not self.rotary or self.keys // self.n_heads % 2 == 0
            self.require("key_width", even, "gives heads of odd width, which cannot be rotary")

    @classmethod
    def abc(cls, *, d_model: int, **fields: Any) -> Self:
        """ABC, in the layer of the public code."""
        layer = {"activation": False, "rotary": True, "scaled": True, "output": "gated_norm"}
        return cls(**{"d_model": d_model, "key_width": d_model // 2, "slots": "softmax", **layer, **fields})

    @property
    def kv_heads(self) -> int:
        """`n_kv_heads`, with the default filled in."""
        return self.n_kv_heads or self.n_heads

    @property
    def keys(self) -> int:
        """`key_width`, with the default filled in."""
        return self.key_width or self.width

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @property
    def slot_count(self) -> int:
        """`n_slots`, with the default filled in."""
        return self.n_slots or self.keys // self.n_heads

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=8, n_heads=4, n_kv_heads=2, key_width=12, value_width=20, n_slots=5, gate_temperature=2.0)

    def flops_per_token(self, length: int) -> float:
        """Projections, scores of a chunk with keys and slots and with slots and values, and both states written and
        read."""
        d, k, v, h = self.width, self.keys, self.values, self.n_heads
        share, m, gate = self.kv_heads / h, self.slot_count, self.output == "gated_norm"
        projections = 2.0 * d * (k + v * (1 + gate) + share * (k + v + m * h))
        scores = min(SLOT_CHUNK, length) * (k + m * h) + min(CHUNK, length) * (m * h + v)
        return projections + 2.0 * scores + 4.0 * m * (k + v)


class GatedSlotAttentionState(NamedTuple):
    """The slots."""

    keys: Float[Array, "b g k m"]
    """`Hk` of the module docstring, float32."""
    values: Float[Array, "b g m v"]
    """`Hv`, float32."""
    total: Float[Array, "b g m"]
    """`z`, float32, -inf before the first token; empty, (b, g, 0), of gated slots."""
    position: Int[Array, "b"]
    """Tokens seen so far by each row, int32."""


class GatedSlotAttention(Mixer):
    """Attention to slots; the state has a fixed size, and `step` costs O(m (k + v)) per head.

    `q_proj` (d, key_width), `k_proj` (d, g k), `v_proj` (d, g v), `slot_proj` (d, g m), `norm.scale` (value_width,) or
    (v,), `gate_proj` (d, value_width) of a gated norm, `out_proj` (value_width, d).
    """

    config: GatedSlotAttentionConfig

    def __init__(self, config: GatedSlotAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, g, std, axes = config.width, config.kv_heads, config.std, ("embed", "heads")
        k, v = config.keys // config.n_heads, config.values // config.n_heads
        self.q_proj: nnx.Linear = linear(d, config.keys, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, g * k, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, g * v, axes=axes, std=std, rngs=rngs)
        self.slot_proj: nnx.Linear = linear(d, g * config.slot_count, axes=axes, std=std, rngs=rngs)
        self.out_proj: nnx.Linear = linear(config.values, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        if config.output == "gated_norm":
            self.gate_proj: nnx.Linear = linear(d, config.values, axes=axes, std=std, rngs=rngs)
            self.norm: GatedNorm = GatedNorm(v, eps=config.norm_eps)
        else:
            self.norm = GatedNorm(config.values, eps=config.norm_eps, axis="heads")
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> GatedSlotAttentionState:
        """Empty slots. The sums are float32 whatever `dtype` says."""
        config, shape = self.config, (batch_size, self.config.kv_heads)
        k, v, m = config.keys // config.n_heads, config.values // config.n_heads, config.slot_count
        total = jnp.full((*shape, m if config.slots == "softmax" else 0), -jnp.inf, jnp.float32)
        position = jnp.zeros((batch_size,), jnp.int32)
        return GatedSlotAttentionState(jnp.zeros((*shape, k, m)), jnp.zeros((*shape, m, v)), total, position)

    def mix(
        self, x: Float[Array, "*b d"], state: GatedSlotAttentionState | None, context: Context
    ) -> tuple[Array, GatedSlotAttentionState]:
        config, one, ids = self.config, x.ndim == 2, context.segment_ids
        tokens = x[:, None] if one else x
        state = self.init_state(x.shape[0]) if state is None else state
        if tokens.shape[1] == 0:
            return x, state
        q, k, v = (project(tokens) for project in (self.q_proj, self.k_proj, self.v_proj))
        if config.activation:
            q, k, v = map(jax.nn.silu, (q, k, v))
        g = config.kv_heads
        q, k, v = split_heads(q, config.n_heads), split_heads(k, g), split_heads(v, g)
        if config.rotary:
            at = state.position[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
            q, k = rotary(q, at), rotary(k, at)
        q = q * q.shape[-1] ** -0.5 if config.scaled else q
        write, log_decay, total = self._written(tokens, state.total, ids)
        inputs, group = SlotTokens(q, k, v, write, log_decay), config.n_heads // g
        inputs = jax.tree.map(lambda y: jnp.repeat(y, config.n_heads // y.shape[2], axis=2), inputs)
        before = jax.tree.map(lambda y: jnp.repeat(y, group, axis=1), SlotState(state.keys, state.values))
        o, after = slot_attention(jax.tree.map(lambda y: y[:, 0], inputs) if one else inputs, before, ids)
        keys, values, position = after.keys[:, ::group], after.values[:, ::group], state.position + tokens.shape[1]
        return self._join(x, o), GatedSlotAttentionState(keys, values, total, position)

    def _written(
        self, x: Float[Array, "b t d"], total: Array, segment_ids: Int[Array, "b t"] | None
    ) -> tuple[Array, Array, Array]:
        """Shares that are written to the slots, log decays, and `total` after the last token."""
        config, logits = self.config, split_heads(self.slot_proj(x).astype(jnp.float32), self.config.kv_heads)
        if config.slots == "softmax":
            return softmax_over_time(jnp.clip(logits, -config.clamp, config.clamp), total, segment_ids)
        log_decay = jax.nn.log_sigmoid(logits) / np.float32(config.gate_temperature)
        return -jnp.expm1(log_decay), log_decay, total

    def _join(self, x: Float[Array, "*b d"], o: Float[Array, "*b h v"]) -> Float[Array, "*b d"]:
        """Norms the heads, gates and joins them, and projects back to the model width."""
        flat = (*x.shape[:-1], self.config.values)
        if self.config.output == "gated_norm":
            return self.out_proj(self.norm(o, self.gate_proj(x).reshape(o.shape)).reshape(flat))
        return self.out_proj(self.norm(jax.nn.silu(o).reshape(flat)))
