"""Implicit long filter of Hyena (Poli et al. 2023, sec. 3.3): a sine network of positions times a decaying window.

    s_0 = sin(w . (p_a W_0 + b_0)),    s_i = sin(w . (s_{i-1} W_i + b_i)),    i = 1..n_inner
    taps[a, c] = (s_{n_inner, a} W_out)_c (exp(-rate_c a / (L - 1)) + shift)

with the `emb_dim` position features `p_a` of tap `a` of `L` (`implicit_filter.position_features`), and one vector `w`
of sine frequencies for all layers, as released. `rate_c` is evenly spaced over the channels, from
ln(1 / target) / slow to ln(1 / target) / fast: the window falls to `target` at the fraction `slow` of the filter's
length in the first channel, `fast` in the last.

Initialisation: `w` = `sine_frequency`; matrices as `HyenaFilterConfig.init` says. The filter has no weight decay
(Zoology, Table 11: filter weight decay 0).
"""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.config.checked import Checked, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Rule
from jaxzoo.layers.causal_conv import uniform_parameter
from jaxzoo.layers.implicit_filter import exact_matmul, position_features
from jaxzoo.layers.variables import parameter
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HyenaFilterConfig(Checked):
    """Options of the filter in Hyena's papers."""

    emb_dim: PositiveInt = 3
    """Position features: time, and cosine and sine of (emb_dim - 1) / 2 frequencies. Zoology's MQAR models have 3,
    Hyena's language models 33."""
    width: PositiveInt = 64
    """Hidden units, the papers' filter order."""
    n_inner: NonNegativeInt = 2
    """Hidden layers between the first and the last matrix."""
    sine_frequency: PositiveFloat = 14.0
    """Initial w. Language models have 14 (Poli et al.) or 2 (Zoology, Table 5); the released MQAR models 1."""
    fast_decay: PositiveFloat = 0.3
    """Fraction of the filter at which the window of the last channel falls to `decay_target`."""
    slow_decay: PositiveFloat = 1.5
    """Fraction for the first channel; Zoology, Table 11, prints 1.2."""
    decay_target: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] = 1e-2
    """Value of the windows at these fractions."""
    shift: NonNegativeFloat = 0.0
    """Added to the windows, so that they do not fall to 0."""
    normalized: bool = False
    """Divides the taps of each lag by the sum of their absolute values over channels (option of the released code)."""
    init: Literal["normal", "uniform"] = "normal"
    """normal: matrices with the mixer's `init_std`, biases 0 (released models); uniform: all in +-1/sqrt(fan_in),
    PyTorch's default (released operator outside a model)."""
    learning_rate_scale: PositiveFloat = 1.0
    """Learning-rate factor of the network."""
    position_learning_rate_scale: NonNegativeFloat = 1.0
    """Learning-rate factor of the position features, parameters in the released code; 0: they are fixed."""

    def __post_init__(self) -> None:
        odd = self.emb_dim >= 3 and self.emb_dim % 2 == 1
        self.require("emb_dim", odd, "must be odd and at least 3", "time, and a cosine and a sine a frequency")
        slower = self.slow_decay >= self.fast_decay
        self.require("slow_decay", slower, f"must be at least fast_decay={self.fast_decay}")


class HyenaFilter(nnx.Module):
    """A filter of `n_taps` taps for each channel; `filter(n)` computes the first `n` of them.

    `positions` (n_taps, emb_dim) unless they are fixed; `kernel_in` (emb_dim, width), `bias_in` (width,);
    `kernel_inner` (n_inner, width, width), `bias_inner` (n_inner, width); `kernel_out` (width, channels), without a
    bias; `frequency` (width,), shared by all layers. The filter depends on `n_taps`, which sets the grid of positions.
    """

    def __init__(
        self,
        config: HyenaFilterConfig,
        channels: int,
        *,
        n_taps: int,
        std: float,
        axes: tuple[str | None] = ("channels",),
        rngs: nnx.Rngs,
    ) -> None:
        """`std`: standard deviation of the matrices if `config.init` is normal; `axes`: logical axis of channels."""
        n, m, emb_dim = config.n_inner, config.width, config.emb_dim
        traits = {"decay": False, "learning_rate_scale": config.learning_rate_scale}

        def make(shape, fan_in, axes, *, bias=False):
            if config.init == "uniform":
                return uniform_parameter(shape, fan_in, axes, rngs=rngs, **traits)
            value = jnp.zeros(shape) if bias else std * jax.random.normal(rngs.params(), shape)
            return parameter(value, axes, **traits)

        self.kernel_in: nnx.Param[jax.Array] = make((emb_dim, m), emb_dim, (None, None))
        self.bias_in: nnx.Param[jax.Array] = make((m,), emb_dim, (None,), bias=True)
        if n:
            self.kernel_inner: nnx.Param[jax.Array] = make((n, m, m), m, (None, None, None))
            self.bias_inner: nnx.Param[jax.Array] = make((n, m), m, (None, None), bias=True)
        self.kernel_out: nnx.Param[jax.Array] = make((m, channels), m, (None, *axes))
        self.frequency: nnx.Param[jax.Array] = parameter(jnp.full((m,), config.sine_frequency), (None,), **traits)
        if config.position_learning_rate_scale:
            features, scale = jnp.asarray(position_features(n_taps, emb_dim)), config.position_learning_rate_scale
            self.positions: nnx.Param[jax.Array] = parameter(
                features, (None, None), decay=False, learning_rate_scale=scale
            )
        self.config: HyenaFilterConfig = config
        self.channels: int = channels
        self.n_taps: int = n_taps

    def __call__(self, count: int) -> Float[Array, "w c"]:
        """Computes the first `count` taps, at most `n_taps`, float32."""
        config = self.config
        fixed = not config.position_learning_rate_scale
        features = position_features(self.n_taps, config.emb_dim) if fixed else self.positions[...]
        hidden = self._sines(jnp.asarray(features[:count]), self.kernel_in[...], self.bias_in[...])
        for i in range(config.n_inner):
            hidden = self._sines(hidden, self.kernel_inner[i], self.bias_inner[i])
        window = decay_window(config, self.n_taps, self.channels)[:count]
        taps = exact_matmul(hidden, self.kernel_out[...]) * jnp.asarray(window)
        return taps / jnp.abs(taps).sum(1, keepdims=True) if config.normalized else taps

    def _sines(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return jnp.sin(self.frequency[...][None, :] * (exact_matmul(x, kernel) + bias[None, :]))


def decay_window(config: HyenaFilterConfig, n_taps: int, channels: int) -> np.ndarray:
    """Window: the factor of each tap, `(n_taps, channels)` float32."""
    slowest, fastest = (-np.log(config.decay_target) / share for share in (config.slow_decay, config.fast_decay))
    rates, time = np.linspace(slowest, fastest, channels), np.linspace(0, 1, n_taps)
    return (np.exp(-time[:, None] * rates[None, :]) + config.shift).astype(np.float32)
