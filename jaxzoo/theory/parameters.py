"""Setting the parameters of a module by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Mixer, MixerConfig


def zeros(config: MixerConfig) -> Mixer:
    """The mixer of `config` with all parameters 0."""
    definition, parameters = nnx.split(nnx.eval_shape(lambda: config.build(rngs=nnx.Rngs(0))))
    return nnx.merge(definition, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parameters))


def write(parameter: nnx.Variable[Any], value: np.ndarray) -> None:
    """Sets a parameter.

    Raises:
      ValueError: the value has another shape, which would be broadcast.
    """
    if parameter.shape != value.shape:
        raise ValueError(f"write: a value of shape {value.shape} must have the parameter's, {parameter.shape}")
    parameter[...] = jnp.asarray(value, jnp.float32)
