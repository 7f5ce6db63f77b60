"""Sums of log decays within chunks."""

import jax.numpy as jnp
import numpy as np
from jax import lax

SMALLEST = -128.0
"""Lower bound of log decays, whose exp is 0 in float32, to limit rounding of sums."""


def log2_from_start(log_decay, chunk: int, padded: int):
    """Sums of base-2 log decays from the start of each chunk: (b, t, h) -> (b, padded, h).

    Differences of sums have the rounding of the sums: 1e-5 of a weight for 128 decays of e^-1.
    """
    bounded = jnp.maximum(log_decay, SMALLEST) * np.float32(1 / np.log(2))
    bounded = jnp.pad(bounded, ((0, 0), (0, padded - bounded.shape[1]), (0, 0)))
    return _by_triangle(np.tri(chunk, dtype=np.float32), bounded)


def sums_to_end(x, chunk: int):
    """Sums from each token to the end of its chunk, inclusive: (b, padded, h)."""
    return _by_triangle(np.tri(chunk, dtype=np.float32).T, x)


def _by_triangle(triangle, x):
    chunks = x.reshape(x.shape[0], -1, len(triangle), x.shape[2])
    return jnp.einsum("ij,bnjh->bnih", triangle, chunks, precision=lax.Precision.HIGHEST).reshape(x.shape)
