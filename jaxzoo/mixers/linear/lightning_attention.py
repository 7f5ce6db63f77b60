"""Lightning attention, as MiniMax-01 has it (MiniMax 2025, arXiv 2501.08313): RetNet with decays by layer and head.

For head h of H, counted from 0, in layer l of L, the linear layers and others:

    q, k, v = silu(x W_q), silu(x W_k), silu(x W_v)        s_h = 2^(-8 (h + 1) / H) (1 - l / (L - 1 + 1e-5) + 1e-5)
    S_i = exp(-s_h) S_{i-1} + k_i v_i^T        o_i = S_i^T q_i
    y = (sigmoid(x W_G) . scale . rms(concat(o_h))) W_O

without a factor 1 / sqrt(k), rotation or biases; the norm is over all heads together, before the gate.
`slopes="linear"` has s_h = 8 h / H (1 - l / L), flash-linear-attention's, where head 0 does not decay.

transformers' MiniMaxLightningAttention: `qkv_proj` has the columns q, k, v of head 0, then those of head 1, and so on;
here they are `q_proj`, `k_proj`, `v_proj`. `norm.weight` is `norm.scale`, `output_gate` is `gate_proj`.

State: S, k v numbers per head.

Good at: Recent text at constant memory, with decays that are slower in later layers.
Paper: MiniMax 2025, https://arxiv.org/abs/2501.08313
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, NonNegativeInt, PositiveInt
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LightningAttentionConfig(MixerConfig):
    """Config of `LightningAttention`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    n_heads: PositiveInt = 1
    """Heads."""
    head_dim: PositiveInt | None = None
    """Width of a head; None: d_model / n_heads."""
    layer_index: NonNegativeInt = 0
    """l, the place of the layer in the model, counted from 0."""
    n_layers: PositiveInt = 1
    """L, all layers of the model."""
    slopes: Literal["geometric", "linear"] = "geometric"
    """Rates s_h: MiniMax's, or flash-linear-attention's."""
    norm_eps: NonNegativeFloat = 1e-6
    """Added to the mean square in the norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("layer_index", self.layer_index < self.n_layers, f"must be below n_layers={self.n_layers}")
        if self.head_dim is None:
            self.require_divisible("d_model", by="n_heads")

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.n_heads * (self.head_dim or self.width // self.n_heads)

    @property
    def rates(self) -> np.ndarray:
        """s_h of the module docstring, (h,), float64."""
        h = np.arange(self.n_heads)
        if self.slopes == "linear":
            return 8 * h / self.n_heads * (1 - self.layer_index / self.n_layers)
        return 2.0 ** (-8 * (h + 1) / self.n_heads) * (1 - self.layer_index / (self.n_layers - 1 + 1e-5) + 1e-5)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=3, head_dim=4, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """Projections, scores of a chunk with their values, and writing and reading the state."""
        inner = self.inner
        return 10.0 * self.width * inner + 4.0 * min(CHUNK, length) * inner + 4.0 * inner**2 / self.n_heads


class LightningAttentionState(NamedTuple):
    """The sums over the past."""

    s: Float[Array, "b h k v"]
    """`S` of the module docstring, float32."""


class LightningAttention(Mixer):
    """Linear attention with fixed decays; the state has a fixed size, and `step` costs O(k v) per head.

    `q_proj`, `k_proj`, `v_proj`, `gate_proj` (d, inner), `norm.scale` (inner,), `out_proj` (inner, d).
    """

    config: LightningAttentionConfig

    def __init__(self, config: LightningAttentionConfig, *, rngs: nnx.Rngs) -> None:
        d, inner, std, axes = config.width, config.inner, config.std, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.gate_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.norm: GatedNorm = GatedNorm(inner, eps=config.norm_eps, activation="sigmoid", axis="heads")
        self.out_proj: nnx.Linear = linear(inner, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> LightningAttentionState:
        """Zeros. The sums are float32 whatever `dtype` says."""
        h, width = self.config.n_heads, self.config.inner // self.config.n_heads
        return LightningAttentionState(jnp.zeros((batch_size, h, width, width), jnp.float32))

    def mix(
        self, x: Float[Array, "*b d"], state: LightningAttentionState | None, context: Context
    ) -> tuple[Array, LightningAttentionState]:
        projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (split_heads(jax.nn.silu(y), self.config.n_heads) for y in projected)
        log_decay = jnp.asarray(-self.config.rates, jnp.float32)
        before = None if state is None else LinearState(state.s, None)
        o, after = linear_attention_from(before, q, k, v, log_decay=log_decay, segment_ids=context.segment_ids)
        y = self.norm(o.reshape(*x.shape[:-1], self.config.inner), self.gate_proj(x))
        return self.out_proj(y), LightningAttentionState(after.s)
