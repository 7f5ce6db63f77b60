"""Public state of wkv4."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

EMPTY = -1e38
"""`max` before the first token: less than any exponent, and finite, to avoid NaN in differences."""


class Wkv4State(NamedTuple):
    """Sums over past tokens, float32: `e^max num` and `e^max den` are the sums in the equation of the next token."""

    num: jax.Array
    """(b, d): sum of the weighted values, over e^max."""
    den: jax.Array
    """(b, d): sum of the weights, over e^max."""
    max: jax.Array
    """(b, d): the largest exponent of a weight: a scale without a gradient."""


def empty_state(batch_size: int, width: int) -> Wkv4State:
    """The state before the first token."""
    zeros = jnp.zeros((batch_size, width), jnp.float32)
    return Wkv4State(zeros, zeros, jnp.full_like(zeros, EMPTY))
