"""Sums of log decays within chunks, for the kernels."""

import jax.numpy as jnp
import numpy as np
from jax import lax

SMALLEST = -128.0
"""exp of it is 0 in float32: smaller log decays change nothing but the rounding of the sums."""


def log2_from_start(log_decay, chunk: int, padded: int):
    """Log decays (b, t, h) -> sums of their logarithms of base 2 from the start of each chunk, (b, padded, h).

    A difference of two sums has the rounding of the sums: of 128 decays, 1e-5 of a weight where all are e^-1.
    """
    bounded = jnp.maximum(log_decay, SMALLEST) * np.float32(1 / np.log(2))
    bounded = jnp.pad(bounded, ((0, 0), (0, padded - bounded.shape[1]), (0, 0)))
    return _by_triangle(np.tri(chunk, dtype=np.float32), bounded)


def sums_to_end(x, chunk: int):
    """(b, padded, h) -> sums from each token to the end of its chunk, both included."""
    return _by_triangle(np.tri(chunk, dtype=np.float32).T, x)


def _by_triangle(triangle, x):
    chunks = x.reshape(x.shape[0], -1, len(triangle), x.shape[2])
    return jnp.einsum("ij,bnjh->bnih", triangle, chunks, precision=lax.Precision.HIGHEST).reshape(x.shape)
