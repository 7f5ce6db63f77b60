"""Helpers of the tests of recall theorems."""

import jax.numpy as jnp
import numpy as np
from flax import nnx


def unit_rows(n, d, *, seed=0):
    """Random embeddings of length 1."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def orthonormal_rows(n, *, seed=0):
    """A random orthonormal basis."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]


@nnx.jit
def likeliest(model, tokens, positions):
    """Most likely tokens at `positions` (b, m)."""
    features = jnp.take_along_axis(model.features(tokens), positions[..., None], axis=1)
    return model.logits(features).argmax(-1)


@nnx.jit
def applied(layer, x):
    """Applies a layer."""
    return layer(x)
