"""Long convolutions without a gate (Fu et al. 2023, Simple hardware-efficient long convolutions for sequence modeling).

    h = dropout(squash(K)),    squash(K) = sign(K) max(|K| - lambda, 0)
    y = glu(gelu(h * u + D . u) W_out + b_out),    glu([a, b]) = a . sigmoid(b)

with one explicit filter of `n_taps` taps per channel. With several filters per channel (`n_channels`, the code's
`channels`) their outputs are concatenated before W_out. The filter has its own learning rate and no weight decay.
Dropout applies to the taps, with one mask for the whole batch, in training only (with `Context.key`).

The defaults are those of Zoology, Table 16: one channel, lambda 0.001, kernel dropout 0.1, GELU, and a learning rate of
5e-5 for the filter and 8e-4 otherwise. The GLU, which Zoology does not mention, is the default of the released code.

Deviations: no moving average of the taps (the paper's other regulariser), and no dropout after the GELU.

Initialisation: K as `kernel_init` says, D N(0, 1); W_out normal with `out_init_std`, b_out zero.

Good at: Signals of long range with a fixed pattern; without a gate it recalls nothing.
Paper: Fu et al. 2023, https://arxiv.org/abs/2302.06646
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import FractionBelowOne, NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import causal_conv_from, conv_flops, empty_history
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Context, Mixer
from jaxzoo.mixers.conv.long_filter import LongFilterConfig
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongConvConfig(LongFilterConfig):
    """Config of `LongConv`; `init_std` has no effect: there is no input projection."""

    n_channels: PositiveInt = 1
    """Filters of each channel of the model."""
    squash: NonNegativeFloat = 1e-3
    """Lambda: shrinks the absolute values of taps, to 0 at least. The released code's default is 0.1."""
    kernel_dropout: FractionBelowOne = 0.1
    """Dropout rate of the taps; others are scaled by 1 / (1 - rate)."""
    kernel_learning_rate_scale: PositiveFloat = 0.0625
    """Learning-rate factor of the filter."""
    kernel_init: Literal["random", "decay"] = "random"
    """Taps N(0, 0.002), or N(0, 0.02) under exponential windows, the later channels' shorter (`initial_window`)."""
    output: Literal["glu", "linear"] = "glu"
    """W_out gives both halves of a GLU, or the output itself."""

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=5, n_taps=15, n_channels=2, squash=0.01, kernel_dropout=0.3)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the convolutions and W_out."""
        d, inner = self.width, self.width * self.n_channels
        return inner * conv_flops(self.filter_length, length) + 2.0 * inner * d * (1 + (self.output == "glu"))


class LongConvState(NamedTuple):
    """Shift register of inputs."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` inputs, oldest first, in the dtype given to `init_state`."""


class LongConv(Mixer):
    """Explicit long convolution, GELU and output projection; `step` costs O(n_taps) per channel.

    `kernel` (n_taps, n_channels, d); `skip` (n_channels, d), D; `out_proj` (n_channels d, 2 d) with bias, (.., d) if
    linear.
    """

    config: LongConvConfig

    def __init__(self, config: LongConvConfig, *, rngs: nnx.Rngs) -> None:
        d, c, n_taps = config.width, config.n_channels, config.filter_length
        kernel = jax.random.normal(rngs.params(), (n_taps, c, d))
        if config.kernel_init == "random":
            kernel = 0.002 * kernel
        else:
            kernel = 0.02 * kernel * jnp.asarray(initial_window(n_taps, d))[:, None]
        scale = config.kernel_learning_rate_scale
        self.kernel: nnx.Param[jax.Array] = parameter(
            kernel, (None, None, "channels"), decay=False, learning_rate_scale=scale
        )
        self.skip: nnx.Param[jax.Array] = parameter(
            jax.random.normal(rngs.params(), (c, d)), (None, "channels"), decay=False
        )
        width = 2 * d if config.output == "glu" else d
        self.out_proj: nnx.Linear = linear(
            c * d, width, axes=("channels", "embed"), std=config.out_std, bias=True, rngs=rngs
        )
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> LongConvState:
        """Initial history: zeros."""
        return LongConvState(empty_history(batch_size, self.config.filter_length, self.config.width, dtype))

    def mix(
        self, x: Float[Array, "*b d"], state: LongConvState | None, context: Context
    ) -> tuple[Array, LongConvState]:
        history, ids = None if state is None else state.history, context.segment_ids
        kernel, dropped = self.kernel[...], self.config.kernel_dropout
        taps = jnp.sign(kernel) * jnp.maximum(jnp.abs(kernel) - self.config.squash, 0.0)
        if context.key is not None and state is None and dropped:
            taps = jnp.where(jax.random.bernoulli(context.key, 1 - dropped, taps.shape), taps / (1 - dropped), 0.0)
        filters = taps.at[0].add(self.skip[...]).swapaxes(0, 1)  # D is part of tap 0
        convolved = [causal_conv_from(history, x, taps, segment_ids=ids) for taps in filters]
        y = jnp.concatenate([part for part, _ in convolved], axis=-1)
        y = self.out_proj(jax.nn.gelu(y, approximate=False))
        return (jax.nn.glu(y) if self.config.output == "glu" else y), LongConvState(convolved[0][1])


def initial_window(n_taps: int, width: int) -> np.ndarray:
    """`exp(-(a / n_taps) (width // 2)^(c / width))` of tap a and channel c, `(n_taps, width)` float32."""
    rates = float(width // 2) ** (np.arange(width) / width)
    return np.exp(-np.arange(n_taps)[:, None] / n_taps * rates[None, :]).astype(np.float32)
