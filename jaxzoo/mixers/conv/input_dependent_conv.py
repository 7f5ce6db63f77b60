"""BaseConv with a filter computed from the sequence (Zoology, Theorem 4.5, sec. 4.3 and App. H.8).

    y = (u W + b1) . (h(u) * u + b2),    h(u)_{s - 1} = 1 for every distance s of a repetition

Definition 4.1 with one filter per sequence, the same for all channels, with a spike where matching keys are s tokens
apart: it moves the token after the key to the query (`kernel="value"`, eq. 19's h^v), or the key itself (`key`, h^k,
`h_s = 1`). There are two ways to find the distances:

- *programmatic*: from token ids, every `s` with `token_i = token_{i-s}` for some i;
- *autocorrelation*: the `n_shifts` distances `s >= 1` with the largest `r_s = sum_i c_i . c_{i-s}`, c the input.

**Not causal**, as the paper says: tokens move forward in time, but the distances depend on the whole sequence. So there
is no state.

Not specified by the paper: a token is compared with its last occurrence, in O(t log t), or with all (`pairs`). The
paper says that the autocorrelation "could learn to perform fuzzy matches", but spikes of 1 have no gradient;
`taps="correlations"` uses taps `r_s / r_0` instead, and `correlate="projection"` a learned projection of the input as
c.

Deviations: all distances share one filter; the theorem stacks one copy of the sequence per distance. The
autocorrelation does not wrap around (in H.8.1 it does), which would confuse s with t - s. Initialisation: W normal,
biases 0.

Good at: An existence proof: one convolution with a filter computed from the sequence solves recall exactly.
Paper: Arora et al. 2024 (Zoology), Theorem 4.5, https://arxiv.org/abs/2312.04927
"""

import dataclasses
from typing import Literal, Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.config.checked import NonNegativeInt, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops
from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.input_dependent_filters import autocorrelation, conv_rows, match_counts, strongest_lags
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputDependentConvConfig(MixerConfig):
    """Config of `InputDependentConv`. `out_init_std` has no effect: there is no output projection."""

    filter: Literal["programmatic", "autocorrelation"] = "programmatic"
    """Source of the distances: comparisons of token ids, or the autocorrelation of the input."""
    kernel: Literal["value", "key"] = "value"
    """Token moved to a repetition at distance s: the token after the match (shift s - 1), or the match (shift s)."""
    pairs: Literal["nearest", "all"] = "nearest"
    """Programmatic: compares each token with its last occurrence, or with all of them, in O(t^2)."""
    ignored_token: NonNegativeInt | None = None
    """Programmatic: an id that is ignored, such as the filler of MQAR."""
    n_shifts: PositiveInt = 8
    """Autocorrelation: number of distances, the theorem's t."""
    taps: Literal["spikes", "correlations"] = "spikes"
    """Autocorrelation: height of a tap, 1 or `r_s / r_0`; only the second has a gradient."""
    correlate: Literal["input", "projection"] = "input"
    """Autocorrelation: of the input, or of a learned projection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        learns = self.correlate == "input" or self.taps == "correlations"
        self.require("correlate", learns, "needs taps='correlations'", "or it gets no gradient")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(causal=False, streams=False, needs_tokens=self.filter == "programmatic")

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=5, filter="autocorrelation", n_shifts=3, taps="correlations", correlate="projection")

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, convolution, and autocorrelation (half as much); without the filter's transform and the
        comparisons of ids."""
        projections, transforms = 1, 1.0
        if self.filter == "autocorrelation":
            projections, transforms = 1 + (self.correlate == "projection"), 1.5
        return 2.0 * self.width**2 * projections + transforms * self.width * conv_flops(length, length)


class InputDependentConv(Mixer):
    """Projection times convolution with a filter computed from the sequence; O(d t log t), with `pairs="all"` O(t^2)
    more.

    `projection` (d, d) with bias; `conv_bias` (d,); `correlated` (d, d) with correlate="projection".
    """

    config: InputDependentConvConfig

    def __init__(self, config: InputDependentConvConfig, *, rngs: nnx.Rngs) -> None:
        d, axes = config.width, ("embed", "channels")
        self.projection: nnx.Linear = linear(d, d, axes=axes, std=config.std, bias=True, rngs=rngs)
        self.conv_bias: nnx.Param[jax.Array] = parameter(jnp.zeros((d,)), ("channels",), decay=False)
        if config.filter == "autocorrelation" and config.correlate == "projection":
            self.correlated: nnx.Linear = linear(d, d, axes=axes, std=config.std, rngs=rngs)
        self.config = config

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        taps = self._at_distances(x, context)
        if self.config.kernel == "value":
            taps = jnp.pad(taps, ((0, 0), (0, 1)))[:, 1:]
        return self.projection(x) * (conv_rows(x, taps) + self.conv_bias[...].astype(x.dtype)[None, None])

    def _at_distances(self, x: Float[Array, "b t d"], context: Context) -> Float[Array, "b t"]:
        """Height of the filter's tap per distance, 0 without a repetition."""
        config = self.config
        if config.filter == "programmatic":
            assert context.tokens is not None, "check_context saw them"
            counts = match_counts(context.tokens, pairs=config.pairs, ignored=config.ignored_token)
            return (counts > 0).astype(jnp.float32)
        r = autocorrelation(x if config.correlate == "input" else self.correlated(x))
        chosen = strongest_lags(r, config.n_shifts)
        if config.taps == "spikes":
            return chosen.astype(jnp.float32)
        return jnp.where(chosen, r / jnp.maximum(r[:, :1], 1e-12), 0.0)
