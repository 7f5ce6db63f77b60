"""Recurrent block of Griffin (De et al. 2024, arXiv 2402.19427): a gated branch and a real-gated linear recurrence.

With a causal convolution of `n_taps` taps, gates whose weights are block-diagonal (one block per head), and c = 8:

    g = gelu(u W_y + b_y)        x = conv(u W_x + b_x) + b_conv
    r_t, i_t = sigmoid(W_a x_t + b_a), sigmoid(W_i x_t + b_i)        log a_t = -c r_t softplus(Lambda)
    h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t)                    out = (g . h) W_out + b_out

(sec. 2.4; App. A prints log sigmoid(Lambda)^{c r} as -c r softplus(Lambda); the sign of Lambda is arbitrary.)

`form="paper"` is this equation, with initial a^c uniform in [0.9, 0.999] (sec. 2.4). `form="release"` is
RecurrentGemma: the first token of a document is not scaled by sqrt(1 - a^2), and a^2 itself starts uniform in
[0.9^2, 0.999^2].

| ours                              | RecurrentGemma (transformers)                                                 |
| --------------------------------- | ----------------------------------------------------------------------------- |
| `x_proj`, `gate_proj`, `out_proj` | `linear_x`, `linear_y`, `linear_out`, transposed                              |
| `conv.taps`, `conv.bias`          | `conv_1d.weight[:, 0, ::-1]`, transposed, and its bias                        |
| `recurrence_gate`, `input_gate`   | `rg_lru.recurrent_gate_weight`, `rg_lru.input_gate_weight`, and their biases  |
| `log_decay_rate`                  | `rg_lru.recurrent_param`: Lambda                                              |

Initialisation: gates normal with 1/sqrt(width of a block), their biases 0, the convolution uniform in +-1/sqrt(n_taps).
GELU is the tanh approximation. Deviation: sqrt(1 - a^2) is at least 1e-6, so that its derivative is finite; the release
clips the derivative instead.

Good at: Text with the smallest state, one number per channel; in Griffin, windows next to it recall.
Paper: De et al. 2024 (Griffin), https://arxiv.org/abs/2402.19427
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history
from jaxzoo.layers.linear import linear
from jaxzoo.layers.probe import show
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.diagonal_scan import diagonal_scan, diagonal_step
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RGLRUConfig(MixerConfig):
    """Config of `RGLRU`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    inner_width: PositiveInt | None = None
    """Channels of each branch; None: d_model, as in RecurrentGemma. The paper's models have about 4/3 d_model."""
    n_heads: PositiveInt = 1
    """Number of blocks of the gates' weights."""
    n_taps: PositiveInt = 4
    """Taps of the convolution, including the current token's."""
    decay_constant: PositiveFloat = 8.0
    """Constant c of the decay."""
    form: Literal["paper", "release"] = "paper"
    """Equation and initialisation of the paper or of RecurrentGemma; see the module docstring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model is not None:
            rule = f"gives {self.inner} channels, which must be a multiple of n_heads={self.n_heads}"
            self.require("inner_width", self.inner % self.n_heads == 0, rule)

    @property
    def inner(self) -> int:
        """`inner_width`, with the default filled in."""
        return self.inner_width or self.width

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, inner_width=9, n_heads=3, n_taps=3, decay_constant=2.0)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, gates, convolution, and 4 per channel for the recurrence."""
        inner = self.inner
        gates = 4.0 * inner * (inner // self.n_heads)
        return 6.0 * self.width * inner + gates + inner * (conv_flops(self.n_taps, length) + 4)


class RGLRUState(NamedTuple):
    """Shift register, recurrent state and position."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` inputs of the convolution, oldest first, in the dtype given to `init_state`."""
    h: Float[Array, "b d"]
    """`h` of the module docstring, `inner_width` channels, float32."""
    position: Int[Array, "b"]
    """Tokens seen, int32."""


class _BlockDiagonal(nnx.Module):
    """`x W + b` with a block-diagonal W: `kernel` (blocks, width, width), `bias` (blocks, width)."""

    def __init__(self, blocks: int, width: int, *, rngs: nnx.Rngs) -> None:
        kernel = jax.random.normal(rngs.params(), (blocks, width, width)) * width**-0.5
        self.kernel: nnx.Param[jax.Array] = parameter(kernel, ("heads", None, None))
        self.bias: nnx.Param[jax.Array] = parameter(jnp.zeros((blocks, width)), ("heads", None), decay=False)

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        kernel, bias = self.kernel[...].astype(x.dtype), self.bias[...].astype(x.dtype)
        blocks = x.reshape(*x.shape[:-1], *bias.shape)
        y = jnp.einsum("...hi,hij->...hj", blocks, kernel)
        return (y + bias.reshape((1,) * (x.ndim - 1) + bias.shape)).reshape(x.shape)


class _GateTokens(NamedTuple):
    """Inputs of the recurrence per token."""

    x: Array  # (..., inner)
    recurrence: Array  # (..., inner): logits of r
    input: Array  # (..., inner): logits of i
    first: Array | None  # (...): whether the token is the first of its document; None: not needed


class RGLRU(Mixer):
    """Griffin's recurrent block; the state has a fixed size, and `step` costs the projections and O(1) per channel.

    `x_proj`, `gate_proj` (d, inner) and `out_proj` (inner, d) with biases, `conv.taps` (n_taps, inner), `conv.bias`,
    `recurrence_gate`, `input_gate` (heads, inner / heads, inner / heads) with biases, `log_decay_rate` (inner,).
    """

    config: RGLRUConfig

    def __init__(self, config: RGLRUConfig, *, rngs: nnx.Rngs) -> None:
        d, inner, heads, std = config.width, config.inner, config.n_heads, config.std
        self.x_proj: nnx.Linear = linear(d, inner, axes=("embed", "channels"), std=std, bias=True, rngs=rngs)
        self.gate_proj: nnx.Linear = linear(d, inner, axes=("embed", "channels"), std=std, bias=True, rngs=rngs)
        self.conv: ShortConv = ShortConv(inner, config.n_taps, rngs=rngs)
        self.recurrence_gate: _BlockDiagonal = _BlockDiagonal(heads, inner // heads, rngs=rngs)
        self.input_gate: _BlockDiagonal = _BlockDiagonal(heads, inner // heads, rngs=rngs)
        self.log_decay_rate: nnx.Param[jax.Array] = parameter(_initial_rate(config, rngs), ("channels",), decay=False)
        self.out_proj: nnx.Linear = linear(
            inner, d, axes=("channels", "embed"), std=config.out_std, bias=True, rngs=rngs
        )
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> RGLRUState:
        """Initial state: zeros; the recurrent state is float32 for any `dtype`."""
        config = self.config
        h = jnp.zeros((batch_size, config.inner), jnp.float32)
        history = empty_history(batch_size, config.n_taps, config.inner, dtype)
        return RGLRUState(history, h, jnp.zeros((batch_size,), jnp.int32))

    def mix(self, x: Float[Array, "*b d"], state: RGLRUState | None, context: Context) -> tuple[Array, RGLRUState]:
        history, h, position = self.init_state(x.shape[0]) if state is None else state
        ids, n_tokens = context.segment_ids, 1 if x.ndim == 2 else x.shape[1]
        convolved, history = self.conv(self.x_proj(x), None if state is None else history, segment_ids=ids)
        places = position
        if x.ndim == 3:
            places = position[:, None] + jnp.arange(n_tokens, dtype=jnp.int32)[None]
            places = places if ids is None else position_in_segment(ids)
        first = places == 0 if self.config.form == "release" else None
        recurrence = show("recurrence_gate_logits", self.recurrence_gate(convolved))
        tokens = _GateTokens(convolved, recurrence, show("input_gate_logits", self.input_gate(convolved)), first)
        rate = self.config.decay_constant * jax.nn.softplus(self.log_decay_rate[...])
        coefficients = Partial(_make_coefficients, rate)
        if x.ndim == 2:
            y, h = diagonal_step(tokens, coefficients, _readout, h)
        else:
            y, h = diagonal_scan(tokens, coefficients, _readout, h, segment_ids=ids)
        y = self.out_proj(jax.nn.gelu(self.gate_proj(x), approximate=True) * y)
        return y, RGLRUState(history, h, position + n_tokens)


def _make_coefficients(rate: Array, tokens: _GateTokens) -> tuple[Array, Array]:
    """Coefficients a and b of the recurrence, float32."""
    x, r, i = (y.astype(jnp.float32) for y in tokens[:3])
    log_a = -rate.reshape((1,) * (x.ndim - 1) + (-1,)) * jax.nn.sigmoid(r)
    scale = jnp.sqrt(jnp.maximum(-jnp.expm1(2 * log_a), 1e-12))
    if tokens.first is not None:
        scale = jnp.where(tokens.first[..., None], 1.0, scale)
    return jnp.exp(log_a), scale * jax.nn.sigmoid(i) * x


def _readout(h: Array, tokens: _GateTokens) -> Array:
    return h.astype(tokens.x.dtype)


def _initial_rate(config: RGLRUConfig, rngs: nnx.Rngs) -> Array:
    """Initial Lambda: a^c uniform in [0.9, 0.999] (paper), or a in that range with a uniform square (release)."""
    power = 1.0 if config.form == "paper" else 2.0
    decay = jax.random.uniform(rngs.params(), (config.inner,), jnp.float32, 0.9**power, 0.999**power)
    rate = -jnp.log(decay) / power  # softplus(Lambda), or c times it
    rate = rate / config.decay_constant if config.form == "paper" else rate
    return rate + jnp.log(-jnp.expm1(-rate))
