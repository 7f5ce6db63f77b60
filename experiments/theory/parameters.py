"""Setting the parameters of a module by hand."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers import BaseConv, BaseConvConfig
from jaxzoo.mixers.base import Mixer, MixerConfig
from jaxzoo.utils.array_typing import Array, Float

AnyMixer = TypeVar("AnyMixer", bound=Mixer)


def zeros(kind: type[AnyMixer], config: MixerConfig) -> AnyMixer:
    """Builds the mixer of `config` with all parameters 0."""
    definition, parameters = nnx.split(nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0))))
    return nnx.merge(definition, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parameters))


def base_conv(kernel: np.ndarray, bias: np.ndarray, taps: np.ndarray, conv_bias: np.ndarray) -> BaseConv:
    """`(u kernel + bias) . (taps * u + conv_bias)`."""
    layer = zeros(BaseConv, BaseConvConfig(d_model=len(bias), filter="long", n_taps=len(taps), form="paper"))
    set_base_conv(layer, kernel, bias, taps, conv_bias)
    return layer


def apply(layers: Sequence[BaseConv], u: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Applies layers in sequence to the input, padded by channels of zeros (Definition H.2)."""
    d = u.shape[2]
    x = jnp.pad(u, ((0, 0), (0, 0), (0, layers[0].config.width - d)))
    for layer in layers:
        x = layer(x)
    return x[..., :d]


def set_base_conv(
    layer: BaseConv, kernel: np.ndarray, bias: np.ndarray, taps: np.ndarray, conv_bias: np.ndarray
) -> None:
    write(layer.projection.kernel, kernel)
    write(layer.projection.bias, bias)
    write(layer.taps, taps)
    write(layer.conv_bias, conv_bias)


def write(parameter: nnx.Variable[Any] | None, value: np.ndarray) -> None:
    """Sets a parameter. Raises `ValueError` if the value has another shape, which would be broadcast."""
    assert parameter is not None
    if parameter.shape != value.shape:
        raise ValueError(f"write: a value of shape {value.shape} must have the parameter's, {parameter.shape}")
    parameter[...] = jnp.asarray(value, jnp.float32)
