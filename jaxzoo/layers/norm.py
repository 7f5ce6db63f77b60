"""LayerNorm and RMSNorm in float32, with a learned scale that starts at 1.

Subclasses of Flax's norms with a custom gradient, which keeps the input and the mean and 1 / std of each row; JAX's own
would keep five arrays of the input's shape.
"""

import functools
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.variables import metadata
from jaxzoo.utils.array_typing import Array, Float


class LayerNorm(nnx.LayerNorm):
    """`scale (x - mean) / sqrt(var + eps) + bias`."""

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert self.scale is not None
        assert self.bias is not None
        return scaled_norm(x, self.scale[...], self.epsilon, True) + _as_row(self.bias[...], x)


class RMSNorm(nnx.RMSNorm):
    """`scale x / sqrt(mean(x^2) + eps)`."""

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert self.scale is not None
        return scaled_norm(x, self.scale[...], self.epsilon, False)


Norm: TypeAlias = LayerNorm | RMSNorm


def norm(kind: Literal["layer", "rms"], width: int, *, eps: float, rngs: nnx.Rngs) -> Norm:
    """Norm of `kind` over the last axis of float32 input; `eps` is added to the variance (mean square)."""
    vector = metadata(("embed",), decay=False)
    if kind == "rms":
        return RMSNorm(width, epsilon=eps, scale_metadata=vector, rngs=rngs)
    return LayerNorm(width, epsilon=eps, scale_metadata=vector, bias_metadata=vector, rngs=rngs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def scaled_norm(x: Float[Array, "*b d"], scale: Float[Array, "d"], eps: float, centred: bool) -> Float[Array, "*b d"]:
    """`scale (x - mean) / sqrt(var + eps)` over the last axis; if not `centred`, the mean is taken as 0."""
    return _forward(x, scale, eps, centred)[0]


def _forward(x: Array, scale: Array, eps: float, centred: bool) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    mean = jnp.mean(x, -1, keepdims=True) if centred else jnp.zeros((*x.shape[:-1], 1), x.dtype)
    square = jnp.mean(jnp.square(x), -1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0.0) + eps)  # rounding can make the difference negative
    return (x - mean) * (rate * _as_row(scale, x)), (x, scale, mean, rate)


def _backward(eps: float, centred: bool, kept: tuple[Array, Array, Array, Array], d_y: Array) -> tuple[Array, Array]:
    """VJP: `d_x = (g - mean(g) - n mean(g n)) / std` with the normed input n and g = scale d_y."""
    x, scale, mean, rate = kept
    normed, g = (x - mean) * rate, d_y * _as_row(scale, x)
    d_x = g - normed * jnp.mean(g * normed, -1, keepdims=True)
    if centred:
        d_x = d_x - jnp.mean(g, -1, keepdims=True)
    return d_x * rate, jnp.sum(d_y * normed, tuple(range(x.ndim - 1)))


scaled_norm.defvjp(_forward, _backward)


def _as_row(scale: Array, x: Array) -> Array:
    return scale.reshape((1,) * (x.ndim - 1) + scale.shape)
