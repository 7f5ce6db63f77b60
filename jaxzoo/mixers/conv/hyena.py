"""Hyena (Poli et al. 2023): alternating gates and long implicit convolutions.

    x^1, ..., x^N, v = split(short_conv(u W_in + b_in))
    z^0 = v,    z^n = x^n . (h^n * z^{n-1} + bias^n . z^{n-1}),    y = z^N W_out + b_out

for order N (Definition 3.1; Zoology, Algorithm 3), with the filters `h^n` of `HyenaFilter` and a depthwise short
convolution. The authors' code, and models trained with it, leave the first long convolution out:

| `form`  | source                                | first gate                           | filters |
| ------- | ------------------------------------- | ------------------------------------ | ------- |
| paper   | Definition 3.1                        | `z^1 = x^1 . (h^1 * v + bias^1 . v)` | N       |
| release | Safari (Hyena's code), Zoology's code | `z^1 = x^1 . v`                      | N - 1   |

Columns of W_in: x^1, ..., x^N, v, as in Zoology's code; Safari's has x^N, ..., x^1, v. Channels of the filter network
are (d, filter), the filter running fastest, in both.

Deviations: a filter has a fixed number of taps, `n_taps`; no dropout.

Initialisation: W_in, W_out normal, b_in, b_out zero; `bias` N(0, 1); the short convolution uniform in +-1/sqrt(3), its
bias too; the filters: `HyenaFilter`.

Good at: Text of long range in sub-quadratic time; it recalls less than attention of its width.
Paper: Poli et al. 2023, https://arxiv.org/abs/2302.10866
"""

import dataclasses
from typing import Annotated, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt, Rule
from jaxzoo.layers.causal_conv import causal_conv_from, conv_flops, empty_history
from jaxzoo.layers.hyena_filter import HyenaFilter, HyenaFilterConfig
from jaxzoo.layers.linear import linear
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Context, Mixer
from jaxzoo.mixers.conv.long_filter import LongFilterConfig
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HyenaConfig(LongFilterConfig):
    """Config of `Hyena`."""

    order: Annotated[int, Rule("must be at least 2", 2, 2**31 - 1)] = 2
    """Gates, N."""
    form: Literal["paper", "release"] = "paper"
    """With the first long convolution (Definition 3.1), or without it (public code)."""
    n_short_taps: PositiveInt = 3
    """Taps of the short convolution."""
    filter_network: HyenaFilterConfig = HyenaFilterConfig()
    """The network that computes the long filters."""

    @property
    def n_filters(self) -> int:
        """Number of long convolutions."""
        return self.order - (self.form == "release")

    @classmethod
    def tiny(cls) -> Self:
        network = HyenaFilterConfig(emb_dim=5, width=6, n_inner=1, sine_frequency=1.5, shift=0.1)
        return cls(d_model=5, order=3, n_taps=15, n_short_taps=4, filter_network=network)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections and convolutions; filters are computed once per batch and left out."""
        d, n = self.width, self.order
        projections = 2.0 * d * d * (n + 2) + (n + 1) * d * conv_flops(self.n_short_taps, length)
        return projections + self.n_filters * d * conv_flops(self.filter_length, length)

    def papers_state_size(self, length: int) -> int:
        """Eq. 14: `d N`."""
        return self.width * length

    def papers_layer_flops(self, length: int, *, mlp: str, mlp_width: int) -> float | None:
        """Table 12, a batch of 1, divided by the N tokens: `3 D^2 + 9 D + 10 D log2(N) + 3 D + 64 D/N + D^2 + 4 D^2`,
        with an MLP of width 2 D.

        A multiply-add counts once; the base of the logarithm is 2, which gives the TFLOPs of Zoology's Table 4.
        """
        del mlp
        d = self.width
        if mlp_width != 2 * d:
            return None
        return 8.0 * d**2 + 12 * d + 10 * d * float(np.log2(length)) + 64 * d / length


class HyenaState(NamedTuple):
    """Shift registers of the convolutions' inputs, oldest first, in the dtype given to `init_state`."""

    short_history: Float[Array, "b w-1 d"]
    """The last `n_short_taps - 1` outputs of W_in, (order + 1) d_model channels."""
    long_history: Float[Array, "b n w-1 d"]
    """The last `n_taps - 1` inputs of each of the `n_filters` long convolutions."""


class Hyena(Mixer):
    """Gated long convolutions; `step` costs O(n_taps) per channel and filter.

    `in_proj` (d, (order + 1) d) and `out_proj` (d, d) with biases; `short_conv`; `filter`, its channels (d, n_filters)
    in this order; `filter_bias` (d, n_filters).

    Each call computes the filters from the parameters, also `step`, at O(n_taps width (n_inner width + n_filters d)).
    In a loop of steps in one program, as in generation, XLA moves this out of the loop (seen on a CPU).
    """

    config: HyenaConfig

    def __init__(self, config: HyenaConfig, *, rngs: nnx.Rngs) -> None:
        d, n, n_filters, std = config.width, config.order, config.n_filters, config.std
        self.in_proj: nnx.Linear = linear(d, (n + 1) * d, axes=("embed", "channels"), std=std, bias=True, rngs=rngs)
        self.short_conv: ShortConv = ShortConv((n + 1) * d, config.n_short_taps, rngs=rngs)
        self.filter: HyenaFilter = HyenaFilter(
            config.filter_network, d * n_filters, n_taps=config.filter_length, std=std, rngs=rngs
        )
        bias = jax.random.normal(rngs.params(), (d, n_filters))
        self.filter_bias: nnx.Param[jax.Array] = parameter(bias, ("channels", None), decay=False)
        self.out_proj: nnx.Linear = linear(d, d, axes=("channels", "embed"), std=config.out_std, bias=True, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> HyenaState:
        """Initial histories: zeros."""
        config = self.config
        short = empty_history(batch_size, config.n_short_taps, (config.order + 1) * config.width, dtype)
        long_shape = (batch_size, config.n_filters, config.filter_length - 1, config.width)
        return HyenaState(short, jnp.zeros(long_shape, dtype))

    def mix(self, x: Float[Array, "*b d"], state: HyenaState | None, context: Context) -> tuple[Array, HyenaState]:
        config, histories, ids = self.config, [], context.segment_ids
        count = config.filter_length  # without a history, only the first t taps reach any token
        count = min(max(x.shape[1], 1), count) if state is None else count
        taps = self.filter(count).reshape(count, config.width, config.n_filters)
        taps = taps.at[0].add(self.filter_bias[...]).transpose(2, 0, 1)  # a bias is part of tap 0
        u, short = self.short_conv(self.in_proj(x), None if state is None else state.short_history, segment_ids=ids)
        *gates, z = jnp.split(u, config.order + 1, axis=-1)
        if config.form == "release":
            z = gates.pop(0) * z
        for n, gate in enumerate(gates):
            before = None if state is None else state.long_history[:, n]
            convolved, history = causal_conv_from(before, z, taps[n], segment_ids=ids)
            histories.append(history)
            z = gate * convolved
        return self.out_proj(z), HyenaState(short, jnp.stack(histories, axis=1))
