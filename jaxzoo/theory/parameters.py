"""Setting the parameters of a module by hand."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Mixer, MixerConfig

M = TypeVar("M", bound=nnx.Module)


def zeros(config: MixerConfig) -> Mixer:
    """The mixer of `config` with all parameters 0, and so with the same numbers at any seed."""
    definition, parameters = nnx.split(config.build(rngs=nnx.Rngs(0)))
    return nnx.merge(definition, jax.tree.map(jnp.zeros_like, parameters))


def write(parameter: nnx.Variable, value: np.ndarray) -> None:
    """Sets a parameter.

    Raises:
      ValueError: the value has another shape, which would be broadcast.
    """
    if parameter.shape != value.shape:
        raise ValueError(f"write: a value of shape {value.shape} must have the parameter's, {parameter.shape}")
    parameter[...] = jnp.asarray(value, jnp.float32)
