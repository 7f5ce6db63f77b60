"""Multi-head Hyena (Massaroli et al. 2023, MultiHyena): Hyena with outer products of heads instead of channels.

    k, q, v = split(short_conv(u W_in + b_in)),  each split into `n_heads` heads
    y_i = concat over heads of q_i^T (h * (k v^T) + bias k v^T)_i W_out + b_out

The `(d / n_heads)^2` products of a head share one filter `h` of `HyenaFilter` and one bias; q reads the key axis. With
heads of one channel this is `Hyena(order=2, form="release")`. Columns of W_in: k, q, v, head-major, in Hyena's order.

Zoology, Fig. 7, has 1, 2, 4 and 8 heads. Its text splits the width into H heads of d / H channels, as above, but its
cost (Table 5, d = 864: 2.41 TFLOPs for Hyena, 2.47 with "4 Heads") is that of heads of 4 channels, `n_heads=216`.
Public code (MAD) has the same confusion.

Deviations and initialisation as in `Hyena`; bias N(0, 1), one per head.

Good at: Hyena with products of channels, which recall more for the same width.
Paper: Massaroli et al. 2023, https://arxiv.org/abs/2310.18780
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history, push_history
from jaxzoo.layers.hyena_filter import HyenaFilter, HyenaFilterConfig
from jaxzoo.layers.linear import linear
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Context, Mixer
from jaxzoo.mixers.conv.long_filter import LongFilterConfig
from jaxzoo.ops.outer_product_conv import outer_product_conv, outer_product_conv_step
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHeadHyenaConfig(LongFilterConfig):
    """Config of `MultiHeadHyena`."""

    n_heads: PositiveInt = 4
    """Heads, each with its own filter; training convolves d_model^2 / n_heads channels."""
    n_short_taps: PositiveInt = 3
    """Taps of the short convolution."""
    filter_network: HyenaFilterConfig = HyenaFilterConfig()
    """The network that computes the long filters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_divisible("d_model", by="n_heads")

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.width // self.n_heads

    @classmethod
    def tiny(cls) -> Self:
        network = HyenaFilterConfig(emb_dim=5, width=6, n_inner=1, sine_frequency=1.5, shift=0.1)
        return cls(d_model=6, n_heads=2, n_taps=15, n_short_taps=4, filter_network=network)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, the short convolution, and the outer products and their convolution and readout."""
        d, products = self.width, self.width * self.head_width
        projections = 8.0 * d * d + 3 * d * conv_flops(self.n_short_taps, length)
        return projections + products * (conv_flops(self.filter_length, length) + 3)


class MultiHeadHyenaState(NamedTuple):
    """Shift registers, oldest first, in the dtype given to `init_state`; products are formed from keys and values."""

    short_history: Float[Array, "b w-1 d"]
    """The last `n_short_taps - 1` outputs of W_in, 3 d_model channels."""
    keys: Float[Array, "b w-1 h k"]
    """The last `n_taps - 1` keys."""
    values: Float[Array, "b w-1 h k"]
    """The last `n_taps - 1` values."""


class MultiHeadHyena(Mixer):
    """Long convolutions of outer products; `step` costs O(n_taps d_model).

    `in_proj` (d, 3 d) and `out_proj` (d, d) with biases; `short_conv`; `filter` of n_heads channels, computed in
    each call (see `Hyena`); `filter_bias` (n_heads,).
    """

    config: MultiHeadHyenaConfig

    def __init__(self, config: MultiHeadHyenaConfig, *, rngs: nnx.Rngs) -> None:
        d, h, std = config.width, config.n_heads, config.std
        self.in_proj: nnx.Linear = linear(d, 3 * d, axes=("embed", "channels"), std=std, bias=True, rngs=rngs)
        self.short_conv: ShortConv = ShortConv(3 * d, config.n_short_taps, rngs=rngs)
        self.filter: HyenaFilter = HyenaFilter(
            config.filter_network, h, n_taps=config.filter_length, std=std, axes=("heads",), rngs=rngs
        )
        self.filter_bias: nnx.Param[jax.Array] = parameter(
            jax.random.normal(rngs.params(), (h,)), ("heads",), decay=False
        )
        self.out_proj: nnx.Linear = linear(d, d, axes=("channels", "embed"), std=config.out_std, bias=True, rngs=rngs)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> MultiHeadHyenaState:
        """Initial histories: zeros."""
        config = self.config
        short = empty_history(batch_size, config.n_short_taps, 3 * config.width, dtype)
        heads = jnp.zeros((batch_size, config.filter_length - 1, config.n_heads, config.head_width), dtype)
        return MultiHeadHyenaState(short, heads, heads)

    def mix(
        self, x: Float[Array, "*b d"], state: MultiHeadHyenaState | None, context: Context
    ) -> tuple[Array, MultiHeadHyenaState]:
        config, ids, past = self.config, context.segment_ids, None if state is None else (state.keys, state.values)
        u, short_history = self.short_conv(
            self.in_proj(x), None if state is None else state.short_history, segment_ids=ids
        )
        shape = (*x.shape[:-1], config.n_heads, config.head_width)
        k, q, v = (part.reshape(shape) for part in jnp.split(u, 3, axis=-1))
        if past is None:
            past, y = (k[:, :0], v[:, :0]), outer_product_conv(q, k, v, self._taps(x.shape[1]), segment_ids=ids)
        elif x.ndim == 2:
            y = outer_product_conv_step(q, k, v, self._taps(), past)
            k, v = k[:, None], v[:, None]
        else:
            y = outer_product_conv(q, k, v, self._taps(), past)
        keys, values = (push_history(before, new) for before, new in zip(past, (k, v), strict=True))
        return self.out_proj(y.reshape(x.shape)), MultiHeadHyenaState(short_history, keys, values)

    def _taps(self, length: int | None = None) -> Float[Array, "w h"]:
        """Filters with the bias added to tap 0; without a history, only the first `length` taps."""
        n_taps = self.config.filter_length
        count = n_taps if length is None else min(max(length, 1), n_taps)
        return self.filter(count).at[0].add(self.filter_bias[...])
