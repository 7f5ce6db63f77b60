"""Parameters drawn on the host: a GPU's compiler takes minutes for one program that draws those of a large model."""

from typing import TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")

STD = 0.02
"""Standard deviation of the parameters."""
NOISE = 4_194_301
"""Length of the random array that is repeated to fill all parameters; prime, so that rows of a matrix differ."""


def draw(shapes: Tree, std: float = STD) -> Tree:
    """Returns arrays of these shapes on the first device: normal numbers, and zeros for integers. The costs of a
    program do not depend on the numbers as long as they are finite."""
    noise = np.float32(std) * np.random.default_rng(0).standard_normal(NOISE, np.float32)

    def one(x: jax.ShapeDtypeStruct) -> jax.Array:
        if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
            return jax.device_put(np.zeros(x.shape, x.dtype))
        return jax.device_put(np.resize(noise, x.shape).astype(x.dtype))

    return jax.tree.map(one, shapes)
