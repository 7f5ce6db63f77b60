"""Gated short convolution of Based (Arora et al. 2024, App. C, eq. 7), as released.

    u1, u2 = split(u W_in + b_in)        y = (silu(h * u1) . u2) W_out + b_out

with a causal depthwise convolution `h *` of `n_taps` taps. In eq. 7, W2 is the projection to the convolved branch u1,
W1 to the other branch, and W3 the output projection. The state is the last `n_taps - 1` entries of u1; Based, App. E.2,
leaves it out.

Deviations: eq. 7 read literally has `c d` channels per branch with c = 4; the released models have 4 d for both
branches. `expansion` counts both: 4 is the release, 8 the literal reading. Eq. 7's b2 can be read as a bias before the
convolution (b_in) or after it (`conv_bias`, absent in the released models). Initialisation of the taps: PyTorch's
default, uniform in +-1/sqrt(n_taps); b_in and b_out zero.

LFM2 (Liquid AI 2025) has the same layer with a gate before the convolution too and no SiLU (`lfm2`):

    u0, u2, u1 = split(u W_in)        y = ((h * (u0 . u1)) . u2) W_out

Good at: The local half of Based: precise shifts of a few tokens, between layers that recall.
Paper: Arora et al. 2024 (Based), https://arxiv.org/abs/2402.18668
"""

import dataclasses
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history, uniform_parameter
from jaxzoo.layers.linear import branches, linear, regroups_matmuls
from jaxzoo.layers.short_conv import has_kernel, short_conv_from
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedShortConvConfig(MixerConfig):
    """Config of `GatedShortConv`; the defaults are those of the released Based models."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    expansion: PositiveInt = 4
    """Channels of both branches together, as a multiple of d_model; 8 is eq. 7 read literally."""
    n_taps: PositiveInt = 3
    """Taps of the convolution, including the current token's."""
    conv_bias: bool = False
    """Adds a bias after the convolution."""
    input_gate: bool = False
    """Multiplies the convolved branch by another branch before the convolution (LFM2)."""
    activation: Literal["silu", "none"] = "silu"
    """Function after the convolution."""
    projection_bias: bool = True
    """Adds biases to the projections."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("expansion", self.expansion % 2 == 0, "must be even", "it counts both branches")

    @classmethod
    def lfm2(cls, **fields: object) -> Self:
        """Config of LFM2's short convolutions."""
        plain: dict[str, Any] = {"expansion": 2, "input_gate": True, "activation": "none", "projection_bias": False}
        return cls(**{**plain, **fields})

    @property
    def n_branches(self) -> int:
        """Outputs of the first projection, in branches."""
        return 2 + self.input_gate

    @property
    def branch_width(self) -> int:
        """Channels of one branch."""
        return self.expansion * self.width // 2

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, expansion=4, n_taps=4, conv_bias=True)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the two projections, `3 expansion d^2` with two branches, and of the convolution."""
        return (self.n_branches + 1.0) * self.expansion * self.width**2 + self.branch_width * conv_flops(
            self.n_taps, length
        )


class GatedShortConvState(NamedTuple):
    """Shift register of the convolved branch."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` entries of u1, `branch_width` channels, in the dtype given to `init_state`."""


class GatedShortConv(Mixer):
    """`silu(short convolution)` times a gate; `step` costs O(n_taps) per channel.

    `in_proj` (d, expansion d): the convolved branch first, then the gate; with an input gate (d, 1.5 expansion d): that
    gate, the output gate, the convolved branch; `taps` (n_taps, branch); `out_proj` (branch, d).
    """

    config: GatedShortConvConfig

    def __init__(self, config: GatedShortConvConfig, *, rngs: nnx.Rngs) -> None:
        d, width, n_taps = config.width, config.branch_width, config.n_taps
        axes, out_axes = ("embed", "channels"), ("channels", "embed")
        bias, inner = config.projection_bias, config.n_branches * width
        self.in_proj: nnx.Linear = linear(d, inner, axes=axes, std=config.std, bias=bias, rngs=rngs)
        self.taps: nnx.Param[jax.Array] = uniform_parameter((n_taps, width), n_taps, (None, "channels"), rngs=rngs)
        if config.conv_bias:
            self.conv_bias: nnx.Param[jax.Array] = uniform_parameter(
                (width,), n_taps, ("channels",), decay=False, rngs=rngs
            )
        self.out_proj: nnx.Linear = linear(width, d, axes=out_axes, std=config.out_std, bias=bias, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> GatedShortConvState:
        """Initial history: zeros."""
        return GatedShortConvState(empty_history(batch_size, self.config.n_taps, self.config.branch_width, dtype))

    def mix(
        self, x: Float[Array, "*b d"], state: GatedShortConvState | None, context: Context
    ) -> tuple[Array, GatedShortConvState]:
        history = None if state is None else state.history
        n_plain = 0 if self.config.activation == "silu" else self.config.branch_width
        offsets = None
        if self.in_proj.bias is not None and regroups_matmuls(x):
            branch = jax.ShapeDtypeStruct((*x.shape[:-1], self.config.branch_width), x.dtype)
            if has_kernel(history, branch, self.taps[...], n_plain, context.segment_ids):
                offsets = self._offsets()
        parts = branches(x, self.in_proj, self.config.n_branches, bias=offsets is None)
        gate, u2, u1 = parts if self.config.input_gate else (None, *parts[::-1])
        y, history = short_conv_from(
            history,
            u1,
            self.taps[...],
            bias=self.conv_bias[...] if self.config.conv_bias else None,
            n_plain=n_plain,
            input_gate=gate,
            output_gate=u2,
            offsets=offsets,
            segment_ids=context.segment_ids,
        )
        return self.out_proj(y), GatedShortConvState(history)

    def _offsets(self) -> Float[Array, "3 branch"]:
        """Biases of the first projection for the convolved branch, the output gate and the input gate."""
        assert self.in_proj.bias is not None
        biases = self.in_proj.bias[...].reshape(self.config.n_branches, -1)
        return biases[::-1] if self.config.input_gate else jnp.pad(biases, ((0, 1), (0, 0)))
