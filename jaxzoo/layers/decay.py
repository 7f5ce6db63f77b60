"""Fixed decays, and decays computed from time steps, `exp(-exp(a_log) softplus(logits + dt_bias))` (Mamba-2)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.layers.variables import parameter
from jaxzoo.utils.array_typing import Array, Float


def head_decay(decay_const: float, n_heads: int) -> np.ndarray:
    """Decay factors per token, `1 - 2^(decay_const - h)` for head h counted from 0, float64 `(h,)`."""
    return 1 - 2.0 ** (decay_const - np.arange(n_heads))


def time_step(logits: Float[Array, "... h"], dt_bias: Float[Array, "h"]) -> Float[Array, "... h"]:
    """Time steps `softplus(logits + dt_bias)`, float32."""
    logits = logits.astype(jnp.float32)
    return jax.nn.softplus(logits + dt_bias.reshape((1,) * (logits.ndim - 1) + (-1,)))


def dt_bias_parameter(
    width: int, *, low: float = 0.001, high: float = 0.1, floor: float = 0.0, axis: str = "heads", rngs: nnx.Rngs
) -> nnx.Param[jax.Array]:
    """Bias b = log(exp(delta) - 1), so softplus(b) = delta, log-uniform in [low, high] and at least `floor`; without
    weight decay."""
    delta = jnp.exp(jax.random.uniform(rngs.params(), (width,), jnp.float32, math.log(low), math.log(high)))
    delta = jnp.maximum(delta, floor) if floor else delta
    return parameter(delta + jnp.log(-jnp.expm1(-delta)), (axis,), decay=False)


def a_log_parameter(width: int, *, low: float, high: float, rngs: nnx.Rngs) -> nnx.Param[jax.Array]:
    """Logarithm of a rate uniform in [low, high], above 0; without weight decay."""
    rate = jax.random.uniform(rngs.params(), (width,), jnp.float32, low, high)
    return parameter(jnp.log(jnp.maximum(rate, 1e-4)), ("heads",), decay=False)
