"""BaseConv, the minimal gated convolution of Zoology (Arora et al. 2024, Definition 4.1), and its released codes.

    y = (u W + b1) . (h * u + b2)

With the projection `p = u W + b1`, a causal depthwise convolution `h * u`, and the elementwise product `.`, the paper's
equation and the two codes differ:

| `form`  | source                | output                                                             |
| ------- | --------------------- | ------------------------------------------------------------------ |
| paper   | Definition 4.1, eq. 1 | `p . (h * u + b2)`                                                 |
| listing | App. B, Listings 1, 2 | `p . (h * u) + u`                                                  |
| release | public repository     | `p . (h * u + u) + u`: its Fourier convolution adds its own input  |

In both codes a short filter is PyTorch's Conv1d, which has a bias: `p . (h * u + b2) + u`. The public repository can
apply a SiLU to both factors of the product (`activation`), before the `+ u`. The state is the last `w - 1` inputs.

Deviations: b1 and b2 are vectors, not (N, d) matrices. The number of taps is fixed by the config, so that streaming
works at any length.

Initialisation: W normal, b1 zero. Short filter and its bias: PyTorch's default, uniform in +-1/sqrt(w). Explicit long
filter: see `long_init_std`; b2 zero. Implicit filter: PyTorch's default, except for `release`, whose model resets all
linear layers: weights normal with `init_std`, biases 0.

Good at: Shifts and comparisons at fixed distances, at the lowest cost; the first layer of hybrids.
Paper: Arora et al. 2024 (Zoology), https://arxiv.org/abs/2312.04927
"""

import dataclasses
import math
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import MAX_DIRECT_TAPS, causal_conv_from, conv_flops, empty_history, uniform_parameter
from jaxzoo.layers.implicit_filter import ImplicitFilter
from jaxzoo.layers.linear import linear
from jaxzoo.layers.short_conv import has_kernel, short_conv_from
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Inherited, Mixer, MixerConfig
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseConvConfig(MixerConfig):
    """Config of `BaseConv`. `out_init_std` has no effect: there is no output projection."""

    filter: Literal["short", "long", "implicit"] = "short"
    """A few free taps, as many free taps as tokens, or taps that an MLP computes from positions."""
    n_taps: PositiveInt | None = None
    """Taps of the filter, including the current token's; None: 3 for a short filter, otherwise the model's length."""
    form: Literal["paper", "listing", "release"] = "paper"
    """Published operator: Definition 4.1, the paper's listing, or the public code."""
    activation: Literal["none", "silu"] = "none"
    """Activation of both factors of the product."""
    long_init_std: PositiveFloat | None = None
    """Standard deviation of a long filter's initial taps; None: 1 as published, or 1/sqrt(n_taps), which keeps the
    scale of the input, for form paper, where none is published."""
    emb_dim: PositiveInt = 3
    """Position features of an implicit filter: time, and cosine and sine of (emb_dim - 1) / 2 frequencies."""
    filter_width: PositiveInt = 16
    """Hidden units of an implicit filter's MLP."""
    filter_decay: bool = True
    """Weight decay applies to the MLP of an implicit filter; Zoology's models of text (Table 9) have none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        odd = self.emb_dim >= 3 and self.emb_dim % 2 == 1
        self.require("emb_dim", odd, "must be odd and at least 3", "time, and a cosine and a sine a frequency")

    @property
    def filter_length(self) -> int:
        """`n_taps`, which must be known.

        Raises:
          ValueError: it is None.
        """
        if self.n_taps is None and self.filter == "short":
            return 3
        self.require("n_taps", self.n_taps is not None, f"must be known for a {self.filter} filter", "set it")
        assert self.n_taps is not None
        return self.n_taps

    @property
    def capabilities(self) -> Capabilities:
        exact = self.filter == "short" and self.filter_length <= MAX_DIRECT_TAPS
        return Capabilities(segments=True, sequence_parallel=True, future_rounding=0.0 if exact else 1e-5)

    def inherit(self, model: Inherited) -> Self:
        config = super().inherit(model)
        if config.n_taps is None and config.filter != "short":
            return dataclasses.replace(config, n_taps=model.max_length)
        return config

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, filter="implicit", n_taps=15, emb_dim=5, filter_width=6)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projection and convolution; an implicit filter is computed once per batch and left out."""
        return 2.0 * self.width**2 + self.width * conv_flops(self.filter_length, length)

    def papers_layer_flops(self, length: int, *, mlp: str, mlp_width: int) -> float | None:
        """Table 10, a batch of 1, divided by the N tokens: `5 D log2(N) + D/2 + 32 D/N + D^2 + 4 D^2`, with
        half of the channels each for a long and a short filter, and an MLP of width 2 D.

        A multiply-add counts once. The base of the logarithm is not given; we take 2.
        """
        del mlp
        d, n = self.width, length
        if mlp_width != 2 * d:
            return None
        return 10 * math.log2(n) * d / 2 + d / 2 + d / 2 * 64 / n + d**2 + 4 * d**2


class BaseConvState(NamedTuple):
    """Shift register of inputs."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` inputs, oldest first, in the dtype given to `init_state`."""


class BaseConv(Mixer):
    """Projection times causal convolution; `step` costs O(n_taps) per channel.

    `projection` (d, d) with bias; `taps` (n_taps, d) for the explicit filters or `implicit_filter`;
    `conv_bias` (d,) if the form has b2.
    """

    config: BaseConvConfig

    def __init__(self, config: BaseConvConfig, *, rngs: nnx.Rngs) -> None:
        d, n_taps, axes = config.width, config.filter_length, ("channels",)
        self.projection: nnx.Linear = linear(d, d, axes=("embed", *axes), std=config.std, bias=True, rngs=rngs)
        if config.filter == "short":
            self.taps = uniform_parameter((n_taps, d), n_taps, (None, *axes), rngs=rngs)
            self.conv_bias = uniform_parameter((d,), n_taps, axes, decay=False, rngs=rngs)
        elif config.filter == "long":
            std = config.long_init_std or (n_taps**-0.5 if config.form == "paper" else 1.0)
            initial = std * jax.random.normal(rngs.params(), (n_taps, d))
            self.taps: nnx.Param[jax.Array] = parameter(initial, (None, *axes))
        else:
            self.implicit_filter: ImplicitFilter = ImplicitFilter(
                d,
                n_taps=n_taps,
                emb_dim=config.emb_dim,
                hidden_width=config.filter_width,
                std=config.std if config.form == "release" else None,
                axes=axes,
                decay=config.filter_decay,
                rngs=rngs,
            )
        if config.filter != "short" and config.form == "paper":
            self.conv_bias: nnx.Param[jax.Array] = parameter(jnp.zeros((d,)), axes, decay=False)
        self.config = config

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> BaseConvState:
        """Initial history: zeros."""
        return BaseConvState(empty_history(batch_size, self.config.filter_length, self.config.width, dtype))

    def mix(
        self, x: Float[Array, "*b d"], state: BaseConvState | None, context: Context
    ) -> tuple[Array, BaseConvState]:
        config, history, ids = self.config, None if state is None else state.history, context.segment_ids
        silu = config.activation == "silu"
        n_plain = 0 if silu else config.width
        if config.filter == "short" and has_kernel(history, x, self.taps[...], n_plain, ids):
            gate = self.projection(x)
            y, history = short_conv_from(
                history, x, self.taps[...], bias=self.conv_bias[...], n_plain=n_plain,
                output_gate=jax.nn.silu(gate) if silu else gate, segment_ids=ids,
            )  # fmt: skip
            return (y if config.form == "paper" else y + x), BaseConvState(history)
        if config.filter == "implicit":
            count = config.filter_length  # without a history, only the first t taps reach any token
            taps = self.implicit_filter(min(max(x.shape[1], 1), count) if state is None else count)
        else:
            taps = self.taps[...]
        convolved, history = causal_conv_from(history, x, taps, segment_ids=ids)
        if config.filter == "short" or config.form == "paper":
            convolved = convolved + along_last(self.conv_bias[...], x)
        elif config.form == "release":
            convolved = convolved + x
        gate = self.projection(x)
        if silu:
            gate, convolved = jax.nn.silu(gate), jax.nn.silu(convolved)
        y = gate * convolved
        return (y if config.form == "paper" else y + x), BaseConvState(history)
