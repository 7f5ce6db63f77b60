"""Shared parts of multi-head softmax attentions: heads, projections and rotary positions."""

import dataclasses
from typing import Annotated, Literal

import jax
from flax import nnx

from jaxzoo.config.checked import FractionAboveZero, NonNegativeFloat, PositiveInt, Rule
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.rotary import rotary
from jaxzoo.layers.rotary_scaling import NO_SCALING, RotaryScaling
from jaxzoo.layers.xpos import xpos_factors
from jaxzoo.mixers.base import NO_CONTEXT, Context, Mixer, MixerConfig, State
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHeadConfig(MixerConfig):
    """Heads and positions of a softmax attention; abstract."""

    n_heads: PositiveInt = 1
    """Number of query heads."""
    n_kv_heads: PositiveInt | None = None
    """Key/value heads, each serving n_heads / n_kv_heads neighbouring query heads; None: n_heads."""
    head_dim: PositiveInt | None = None
    """Width of a head; None: d_model / n_heads."""
    positions: Literal["none", "rotary", "xpos", "alibi"] = "none"
    """Position encoding; xpos: rotary with decay by distance (`jaxzoo/layers/xpos.py`)."""
    rotary_fraction: FractionAboveZero = 1.0
    """Fraction of each head's channels, from the first on, that rotate; an even number of channels."""
    rotary_base: Annotated[float, Rule("must be at least 1", 1)] = 10000.0
    """Base of the rotary frequencies: the slowest pair turns by about 1 / base radians per token."""
    rotary_scaling: RotaryScaling = NO_SCALING
    """Scaling of the frequencies for texts longer than in training."""
    rotary_interleaved: bool = False
    """Pairs of neighbouring channels rotate (RoFormer, GPT-J), not of channels half a head apart (GPT-NeoX, Llama)."""
    xpos_scale_base: Annotated[float, Rule("must be at least 16", 16)] = 512.0
    """xpos: distance at which the fastest pair of channels decays to 0.29. There are 64 times as many positions;
    outputs beyond them are NaN."""
    qkv_bias: bool = False
    """Adds a bias to the query, key and value projections."""
    out_bias: bool = False
    """Adds a bias to the output projection."""
    qk_norm: Literal["none", "rms", "rms_all_heads"] = "none"
    """Norm of queries and keys before rotation, with a learned scale per channel: of each head (Qwen3), or of all heads
    together (OLMo)."""
    qk_norm_eps: NonNegativeFloat = 1e-6
    """Added to the mean square in that norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            "n_kv_heads", self.n_heads % self.kv_heads == 0, f"must divide n_heads={self.n_heads}", "or be None"
        )
        if not self.head_dim:
            self.require_divisible("d_model", by="n_heads")
        if self.rotates:
            share, width = self.rotary_fraction, self.head_width
            rotated = self.rotated_channels
            even = abs(share * width - rotated) < 1e-6 and rotated % 2 == 0
            rule = f"times head_dim={width} must be an even number of channels"
            self.require("rotary_fraction", even, rule, "0.5 and 1.0 are common")
        kind = self.rotary_scaling.kind
        alone = self.positions != "xpos" or kind == "none"
        rule = f"must be 'rotary' with rotary_scaling.kind={kind!r}, which leaves open how fast scores then fade"
        self.require("positions", alone, rule)

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default filled in."""
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        """Width of a head, with the default filled in; 0 while neither head_dim nor d_model is known."""
        return self.head_dim or (self.d_model or 0) // self.n_heads

    def heads_of(self, part: str) -> int:
        """Heads of `queries`, `keys` or `values`."""
        return self.n_heads if part == "queries" else self.kv_heads

    @property
    def rotates(self) -> bool:
        """Whether queries and keys rotate."""
        return self.positions in ("rotary", "xpos")

    @property
    def rotated_channels(self) -> int:
        """Channels of a head that rotate, for rotary positions."""
        return round(self.rotary_fraction * self.head_width)

    @property
    def projection_flops(self) -> float:
        """Forward operations per token of the four projections."""
        return 4.0 * self.width * self.head_width * (self.n_heads + self.kv_heads)


class MultiHeadMixer(Mixer):
    """Projections of a softmax attention; abstract.

    `q_proj` (d, h k), `k_proj` and `v_proj` (d, g k), `out_proj` (h k, d): head-major columns, as `(h, k)`; with
    `qk_norm` also `q_norm.scale`, `k_norm.scale`: (k,), or (h k,) and (g k,) for all heads.
    """

    def __init__(self, config: MultiHeadConfig, *, rngs: nnx.Rngs) -> None:
        d, std, bias = config.width, config.std, config.qkv_bias
        q_width, kv_width = config.n_heads * config.head_width, config.kv_heads * config.head_width
        inward, outward = ("embed", "heads"), ("heads", "embed")
        self.q_proj: nnx.Linear = linear(d, q_width, axes=inward, std=std, bias=bias, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, kv_width, axes=inward, std=std, bias=bias, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, kv_width, axes=inward, std=std, bias=bias, rngs=rngs)
        self.out_proj: nnx.Linear = linear(
            q_width, d, axes=outward, std=config.out_std, bias=config.out_bias, rngs=rngs
        )
        if config.qk_norm != "none":
            one_by_one = config.qk_norm == "rms"
            widths = (config.head_width, config.head_width) if one_by_one else (q_width, kv_width)
            q_norm, k_norm = (
                GatedNorm(width, eps=config.qk_norm_eps, axis=None if one_by_one else "heads") for width in widths
            )
            self.q_norm: GatedNorm = q_norm
            self.k_norm: GatedNorm = k_norm
        self.config = config

    def _project(self, x: Float[Array, "b t d"], positions: Int[Array, "b t"]) -> tuple[jax.Array, ...]:
        """Queries `(b, t, h, k)`, keys and values `(b, t, g, k)`, rotated to their absolute positions."""
        return self._queries(x, positions), *self._keys_and_values(x, positions)

    def _queries(self, x: Float[Array, "b t d"], positions: Int[Array, "b t"]) -> Float[Array, "b t h k"]:
        return self._rotated(self._heads(self.q_proj(x), self.config.n_heads, "q_norm"), positions)

    def _keys_and_values(self, x: Float[Array, "b t d"], positions: Int[Array, "b t"]) -> tuple[jax.Array, jax.Array]:
        k, v = self.k_proj(x), split_heads(self.v_proj(x), self.config.kv_heads)
        return self._rotated(self._heads(k, self.config.kv_heads, "k_norm"), positions, keys=True), v

    def _heads(self, y: Float[Array, "b t hk"], heads: int, norm: str) -> Float[Array, "b t h k"]:
        """Splits queries or keys into heads, normalized if the config says so."""
        kind = self.config.qk_norm
        if kind == "rms_all_heads":
            y = getattr(self, norm)(y)
        y = split_heads(y, heads)
        return getattr(self, norm)(y) if kind == "rms" else y

    def _rotated(
        self, y: Float[Array, "b t h k"], positions: Int[Array, "b t"], *, keys: bool = False
    ) -> Float[Array, "b t h k"]:
        """Rotates queries or keys to their absolute positions, if positions are rotary."""
        config = self.config
        if not config.rotates:
            return y
        n, lengths = config.rotated_channels, None
        if config.positions == "xpos":
            lengths = xpos_factors(positions, n, scale_base=config.xpos_scale_base, keys=keys)
        return rotary(
            y,
            positions,
            channels=n,
            base=config.rotary_base,
            scaling=config.rotary_scaling,
            interleaved=config.rotary_interleaved,
            lengths=lengths,
        )

    def _merge(self, y: Float[Array, "b t h k"]) -> Float[Array, "b t d"]:
        """Joins the heads and projects to the model width."""
        b, t, h, k = y.shape
        return self.out_proj(y.reshape(b, t, h * k))


class SteppedByPrefill(MultiHeadMixer):
    """A softmax attention whose `step` is `prefill` of one token; abstract."""

    def step(
        self, x_t: Float[Array, "b d"], state: State, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], State]:
        """`prefill` of one token."""
        tokens = None if context.tokens is None else context.tokens[:, None]
        y, state = self.prefill(x_t[:, None], state, dataclasses.replace(context, tokens=tokens))
        return y[:, 0], state
