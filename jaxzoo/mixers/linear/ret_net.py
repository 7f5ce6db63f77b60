"""Multi-scale retention of RetNet (Sun et al. 2023), and its plain form in Zoology.

For head h with gamma_h = 1 - 2^(-5 - h), queries and keys rotated to their positions (eqs. 5, 6 and 8):

    S_i = gamma S_{i-1} + k_i v_i^T        o_i = q_i^T S_i / sqrt(head_dim)
    y = (silu(x W_G) . concat(norm(o_h))) W_O

The norm is RetNet's group norm: over the channels of each head, without parameters. `group_norm="layer"` subtracts the
mean (the paper's GroupNorm); "rms" does not (current TorchScale).

Zoology, App. H.2.3 (Algorithm 6), has only the recurrence: `RetNetConfig.plain`. Its A, C and V are our keys, queries
and values. Zoology's "chunked RNN" with chunks of 8, 32 or 128 tokens is this mixer with `chunk_size` 8, 32, 128, which
affects only the speed.

In xPos (`jaxzoo/layers/xpos.py`) each pair of channels has its own decay. RetNet has one decay gamma per head instead,
so its queries and keys are only rotated, here and in TorchScale.

Deviations: pairs are channels half a head apart (TorchScale: neighbours; equivalent up to the order of columns of W_Q
and W_K), and pair i of n rotates by `base^(-i / n)` radians (TorchScale: `base^(-i / (n - 1))`). The decay matrix is
not normalised by rows, which the norm cancels up to its eps. No biases.

Good at: Recent text at constant memory, with fixed decays.
Paper: Sun et al. 2023, https://arxiv.org/abs/2307.08621
"""

import dataclasses
from typing import Annotated, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import FractionAboveZero, NonNegativeFloat, PositiveInt, Rule
from jaxzoo.layers.decay import head_decay
from jaxzoo.layers.head_norm import HeadNorm, head_norm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.rotary import rotary
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetNetConfig(MixerConfig):
    """Config of `RetNet`."""

    promises = Capabilities(segments=True, sequence_parallel=True)
    size_fields = ("n_heads",)

    n_heads: PositiveInt = 1
    """Heads, each with its own decay."""
    value_width: PositiveInt | None = None
    """Total width of the values of all heads; None: d_model. RetNet's models have 2 d_model."""
    gamma: FractionAboveZero | None = None
    """Decay factor per token, for all heads; None: 1 - 2^(-5 - h) for head h, counted from 0."""
    positions: Literal["none", "rotary"] = "rotary"
    """Rotates queries and keys by their positions."""
    rotary_base: Annotated[float, Rule("must be at least 1", 1)] = 10000.0
    """Base of the rotary frequencies."""
    group_norm: HeadNorm = "layer"
    """Norm of each head's output: LayerNorm (paper), RMSNorm, or none."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in that norm."""
    gate: bool = True
    """Multiplies by silu(x W_G)."""
    scaled: bool = True
    """Divides q.k by the square root of the head's width."""
    output_projection: bool = True
    """Projects the heads back to the model width."""
    chunk_size: PositiveInt = CHUNK
    """Chunk length; affects only the speed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model is None:
            return
        self.require_divisible("d_model", by="n_heads")
        self.require_divisible("value_width", by="n_heads")
        same = self.output_projection or self.values == self.d_model
        self.require("output_projection", same, f"needs value_width={self.values} to be d_model={self.d_model}")
        even = self.positions == "none" or self.head_width % 2 == 0
        self.require("positions", even, f"needs an even d_model / n_heads={self.head_width}", "or 'none'")

    @classmethod
    def plain(cls, *, gamma: float, d_model: int | None = None) -> Self:
        """Config of Zoology, App. H.2.3: one head, a scalar gamma, only the recurrence."""
        return cls(
            d_model=d_model,
            gamma=gamma,
            positions="none",
            group_norm="none",
            gate=False,
            scaled=False,
            output_projection=False,
        )

    @property
    def head_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.width // self.n_heads

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=12, n_heads=3, value_width=15, chunk_size=4)

    def flops_per_token(self, length: int) -> float:
        """Projections, scores of a chunk with their values, state update and read."""
        d, v = self.width, self.values
        projections = 2.0 * d * (2 * d + v * (1 + self.gate + self.output_projection))
        return projections + 2.0 * min(self.chunk_size, length) * (d + v) + 4.0 * self.head_width * v


class RetNetState(NamedTuple):
    """Sums over the past, and the position."""

    s: Float[Array, "b h k v"]
    """Decayed sum of `k_j v_j^T`, float32."""
    position: Int[Array, "b"]
    """Tokens seen per row, int32."""


class RetNet(Mixer):
    """Multi-scale retention; the state has a fixed size, and `step` costs O(d_model value_width / n_heads).

    `q_proj`, `k_proj` (d, d), `v_proj`, `gate_proj` (d, value_width), `out_proj` (value_width, d): head-major columns.
    """

    config: RetNetConfig

    def __init__(self, config: RetNetConfig, *, rngs: nnx.Rngs) -> None:
        d, values, std = config.width, config.values, config.std
        axes = ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, d, axes=axes, std=std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, d, axes=axes, std=std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, values, axes=axes, std=std, rngs=rngs)
        if config.gate:
            self.gate_proj: nnx.Linear = linear(d, values, axes=axes, std=std, rngs=rngs)
        if config.output_projection:
            self.out_proj: nnx.Linear = linear(values, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> RetNetState:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        shape = (batch_size, config.n_heads, config.head_width, config.values // config.n_heads)
        return RetNetState(jnp.zeros(shape, jnp.float32), jnp.zeros((batch_size,), jnp.int32))

    def mix(self, x: Float[Array, "*b d"], state: RetNetState | None, context: Context) -> tuple[Array, RetNetState]:
        config, h, tokens = self.config, self.config.n_heads, x[:, None] if x.ndim == 2 else x
        position = jnp.zeros((1,), jnp.int32) if state is None else state.position
        q, k, v = (split_heads(y, h) for y in (self.q_proj(tokens), self.k_proj(tokens), self.v_proj(tokens)))
        if config.positions == "rotary":
            places = position[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
            q, k = (rotary(y, places, base=config.rotary_base) for y in (q, k))
        q = q * config.head_width**-0.5 if config.scaled else q
        if x.ndim == 2:
            q, k, v = (y[:, 0] for y in (q, k, v))
        decay = head_decay(-5, h) if config.gamma is None else np.full(h, config.gamma)
        options = {"log_decay": jnp.asarray(np.log(decay), jnp.float32), "chunk_size": config.chunk_size}
        before = None if state is None else LinearState(state.s, None)
        o, after = linear_attention_from(before, q, k, v, **options, segment_ids=context.segment_ids)
        y = head_norm(o, config.group_norm, eps=config.norm_eps).reshape(*x.shape[:-1], config.values)
        if config.gate:
            y = jax.nn.silu(self.gate_proj(x)) * y
        y = self.out_proj(y) if config.output_projection else y
        return y, RetNetState(after.s, position + tokens.shape[1])
