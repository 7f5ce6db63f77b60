"""The feature layout that all implementations share: against the polynomial and its other spellings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.taylor_attention import features
from tests.pallas_kernels.shared import full


@pytest.mark.parametrize(("k", "scale"), [(5, 0.3), full(1, 1.0), full(2, 0.25), full(16, 0.25)])
def test_product_of_features_is_the_taylor_polynomial(k, scale):
    """Kills: a wrong half on squares, a lost pair, a scale of the wrong degree."""
    q, keys = np.random.default_rng(0).standard_normal((2, 5, k)).astype(np.float32)
    product = jax.jit(lambda q, keys: features.query_feature_map(q, scale) @ features.feature_map(keys).T)(q, keys)
    s = scale * q.astype(np.float64) @ keys.T
    np.testing.assert_allclose(product, 1 + s + s**2 / 2, rtol=1e-5, atol=1e-5)


def test_order_is_the_documented_one():
    x = jnp.asarray([2.0, 3.0, 5.0])
    assert features.feature_map(x).tolist() == [1, 2, 3, 5, 4, 6, 10, 9, 15, 25]
    assert features.query_coefficients(3, 2.0).tolist() == [1, 2, 2, 2, 2, 4, 4, 2, 4, 2]
    assert features.n_features(16) == 153
    assert features.n_full_features(16) == 273


@pytest.mark.full
@pytest.mark.parametrize("width", [None, 128])
def test_selection_matrices_are_exact_in_bfloat16(width):
    """Kills: swapped offsets, features that are not 0 in the padding."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((7, 8)), jnp.bfloat16)
    left, right, left_offset, right_offset = (jnp.asarray(m) for m in features.selection(8, width))
    first = (x @ left.astype(x.dtype)).astype(jnp.float32) + left_offset[None]
    second = (x @ right.astype(x.dtype)).astype(jnp.float32) + right_offset[None]
    phi = np.asarray(first * second)
    n = features.n_features(8)
    np.testing.assert_array_equal(phi[:, :n], np.asarray(features.feature_map(x.astype(jnp.float32))))
    assert not phi[:, n:].any()


@pytest.mark.full
def test_full_form_round_trip_and_meaning():
    """Kills: an index table that is wrong only off the diagonal, a converter that works on one axis only."""
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    symmetric = features.feature_map(jnp.asarray(x))
    full = features.symmetric_to_full(symmetric, k=6, axis=-1)
    products = (x[:, :, None] * x[:, None, :]).reshape(4, 36)
    np.testing.assert_array_equal(np.asarray(full), np.concatenate([np.ones((4, 1), np.float32), x, products], 1))
    np.testing.assert_array_equal(np.asarray(features.full_to_symmetric(full, k=6, axis=-1)), np.asarray(symmetric))
    state = jnp.asarray(np.random.default_rng(1).standard_normal((2, 28, 3)), jnp.float32)
    there = features.symmetric_to_full(state, k=6, axis=1)
    assert there.shape == (2, 43, 3)
    np.testing.assert_array_equal(np.asarray(features.full_to_symmetric(there, k=6, axis=1)), np.asarray(state))
