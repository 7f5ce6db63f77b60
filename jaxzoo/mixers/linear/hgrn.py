"""HGRN (Qin et al. 2023, arXiv 2311.04823): a gated recurrence per channel whose gates have a lower bound by depth.

With a lower bound gamma of the forget gates that rises with the depth, channel by channel:

    f_t = gamma + (1 - gamma) sigmoid(x_t W_f)        h_t = f_t h_{t-1} + (1 - f_t) silu(x_t W_i)
    y = (silu(x W_G) . scale . rms(h)) W_O

The form is flash-linear-attention's, which is real; the paper's h is complex, turned by a learned angle per channel at
each token. fla's names: `i_proj`, `f_proj`, `g_proj` (`gate_proj`), `g_norm.weight` (`norm.scale`), `o_proj`
(`out_proj`).

Deviations: the bounds do not learn. They are the running sum of a softmax over the layers, one parameter of the whole
model; they start at l / L for layer l of L, and there they stay here: the buffer `lower_bound`, which takes the learned
ones of a checkpoint. fla's option of short convolutions is left out.

State: h, one number per channel.

Good at: Cheap text models: a state of one number per channel. Its recall is bounded by this state.
Paper: Qin et al. 2023, https://arxiv.org/abs/2311.04823
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, NonNegativeInt, PositiveInt
from jaxzoo.layers.head_norm import GatedNorm
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import Buffer, along_last, buffer
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.diagonal_scan import diagonal_scan, diagonal_step
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGRNConfig(MixerConfig):
    """Config of `HGRN`."""

    promises = Capabilities(segments=True, sequence_parallel=True)

    inner_width: PositiveInt | None = None
    """Channels of the recurrence; None: d_model."""
    layer_index: NonNegativeInt = 0
    """l, the place of the layer from the front, counted from 0, which decides the lower bound l / L."""
    n_layers: PositiveInt = 1
    """L, the layers of HGRN in the model."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the mean square in the norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("layer_index", self.layer_index < self.n_layers, f"must be below n_layers={self.n_layers}")

    @property
    def inner(self) -> int:
        """`inner_width`, with the default filled in."""
        return self.inner_width or self.width

    @property
    def scanned_as(self) -> MixerConfig:
        return dataclasses.replace(self, layer_index=0, n_layers=1)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, inner_width=9, layer_index=1, n_layers=3)

    def flops_per_token(self, length: int) -> float:
        """Projections, and one multiply-add per channel."""
        del length
        return 8.0 * self.width * self.inner + 2.0 * self.inner


class HGRNState(NamedTuple):
    """The recurrence after the last token."""

    h: Float[Array, "b d"]
    """`h` of the module docstring, float32."""


class HGRN(Mixer):
    """A gated recurrence per channel; the state has a fixed size, and `step` costs O(1) per channel.

    `i_proj`, `f_proj`, `gate_proj` (d, inner), `lower_bound` (inner,), a buffer, `norm.scale` (inner,), `out_proj`
    (inner, d).
    """

    config: HGRNConfig

    def __init__(self, config: HGRNConfig, *, rngs: nnx.Rngs) -> None:
        d, inner, std, axes = config.width, config.inner, config.std, ("embed", "channels")
        self.i_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.f_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        self.gate_proj: nnx.Linear = linear(d, inner, axes=axes, std=std, rngs=rngs)
        bound = jnp.full((inner,), config.layer_index / config.n_layers, jnp.float32)
        self.lower_bound: Buffer = buffer(bound, ("channels",))
        self.norm: GatedNorm = GatedNorm(inner, eps=config.norm_eps, axis="channels")
        self.out_proj: nnx.Linear = linear(inner, d, axes=("channels", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> HGRNState:
        """Zeros, float32 whatever `dtype` says."""
        return HGRNState(jnp.zeros((batch_size, self.config.inner), jnp.float32))

    def mix(self, x: Float[Array, "*b d"], state: HGRNState | None, context: Context) -> tuple[Array, HGRNState]:
        logits, inputs = self.f_proj(x).astype(jnp.float32), self.i_proj(x).astype(jnp.float32)
        bound = along_last(self.lower_bound[...], logits)
        write = (1 - bound) * jax.nn.sigmoid(-logits)  # 1 - f, not a difference
        tokens = (bound + (1 - bound) * jax.nn.sigmoid(logits), write * jax.nn.silu(inputs))
        h = self.init_state(x.shape[0]).h if state is None else state.h
        if x.ndim == 2:
            y, h = diagonal_step(tokens, _coefficients, _readout, h)
        else:
            y, h = diagonal_scan(tokens, _coefficients, _readout, h, segment_ids=context.segment_ids)
        return self.out_proj(self.norm(y.astype(x.dtype), self.gate_proj(x))), HGRNState(h)


def _coefficients(tokens: tuple[Array, Array]) -> tuple[Array, Array]:
    return tokens


def _readout(h: Array, tokens: tuple[Array, Array]) -> Array:
    del tokens
    return h
