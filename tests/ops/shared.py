"""Helpers of the ops' tests: float64 truths, values with gradients, packed documents."""

import jax
import jax.numpy as jnp
import numpy as np


def single(tree):
    """Arrays in float32 or complex64."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.complex64 if np.iscomplexobj(x) else jnp.float32), tree)


def in_float64(function, *arguments):
    """Results as NumPy arrays, computed with 64-bit types."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*arguments))


def with_gradients(function, inputs, cotangents):
    """Outputs of `function(*inputs)`, and the gradients of all inputs."""
    out, pull_back = jax.vjp(function, *inputs)
    return out, pull_back(cotangents)


def assert_close(found, expected, tolerance):
    """Every leaf within `tolerance` of the largest entry of its expectation, at least 1."""
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max(initial=1.0))


def documents(t, chunk):
    """Segment ids of two rows: borders inside and at the end of a chunk, and before the last token."""
    rows = [np.repeat([3, 1, 2], [1, chunk - 1, t - chunk]), np.repeat([5, 4, 6], [chunk + 9, t - chunk - 10, 1])]
    return np.stack(rows).astype(np.int32)
