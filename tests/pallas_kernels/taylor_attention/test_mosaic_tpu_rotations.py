"""The features of the TPU kernels by rotations, against those of `features.py`, without a kernel around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.taylor_attention import mosaic_tpu_layout as rotations
from pallas_kernels.taylor_attention.features import feature_map, query_coefficients, query_feature_map
from pallas_kernels.taylor_attention.mosaic_tpu_layout import make_geometry, pack_state, unpack_state
from pallas_kernels.taylor_attention.state import TaylorState
from tests.pallas_kernels.shared import full, slow

KEY_DIMS = [full(24), full(32), slow(8), slow(16)]
"""No core test: the interpreted kernels are the core tests of these features."""
SCALE = 0.3


def scratch(x):
    """x (c, k) as `spread` leaves it for one head."""
    return jnp.concatenate([x, x], axis=1).T[None, : rotations.scratch_rows(x.shape[1])]


def tokens(k):
    return jnp.asarray(np.random.default_rng(k).normal(size=(5, k)), jnp.float32)


@pytest.mark.parametrize("k", KEY_DIMS)
@pytest.mark.parametrize("a", [None, 1 / SCALE])
def test_rows_are_the_features(k, a):
    """Kills: a shift off by one, a pair twice or never, a weight of the wrong shift, a row that should be zero."""
    x = tokens(k)
    rows = rotations.features(scratch(x), 0, k, jnp.float32, a)
    assert len(rows) == rotations.n_rows(k)
    weights = np.ones(1) if a is None else 2 * a**2 * query_coefficients(k, SCALE)
    expected = np.zeros(rows.shape)
    expected[rotations.public_rows(k)] = np.asarray(feature_map(x)).T * weights[:, None]
    np.testing.assert_allclose(rows, expected, rtol=1e-5)


@pytest.mark.parametrize("k", KEY_DIMS)
@pytest.mark.parametrize("a", [None, 1 / SCALE])
def test_pull_back_is_the_transposed_jacobian(k, a):
    """Kills: a rotation back the wrong way, rows of zeros that leak, the square's factor of 2."""
    x = tokens(k)
    u = np.random.default_rng(0).normal(size=(rotations.n_rows(k), len(x))).astype(np.float32)
    cotangent = jnp.asarray(u[rotations.public_rows(k)].T)
    phi = feature_map if a is None else lambda x: a**2 * query_feature_map(x, SCALE)
    _, pull_back = jax.vjp(phi, x)
    dx = jax.jit(lambda u: rotations.pull_back(u, scratch(x), 0, k, a))(jnp.asarray(u))
    np.testing.assert_allclose(dx, pull_back(cotangent)[0].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("k", KEY_DIMS)
def test_states_come_back_as_they_went(k):
    """Kills: an order of the rows that its inverse does not undo; values of one head in the rows of another."""
    rng, features = np.random.default_rng(0), 1 + k + k * (k + 1) // 2
    q, v = jax.ShapeDtypeStruct((2, 1, 3 * k), "float32"), jax.ShapeDtypeStruct((2, 1, 3 * 8), "float32")
    options = {"scale": 1.0, "eps": 0.0, "normalize": True, "chunk_size": 16, "block_size": 16}
    g = make_geometry(q, q, v, h=3, **options)
    s, z = rng.normal(size=(2, 3, features, 8)), rng.normal(size=(2, 3, features))
    state = TaylorState(jnp.asarray(s, jnp.float32), jnp.asarray(z, jnp.float32))
    packed = pack_state(state, g)
    assert packed.shape == (2, *g.state_shape)
    np.testing.assert_array_equal(packed[:, :, 3, rotations.public_rows(k)], state.s[..., 3])
    assert np.count_nonzero(packed) == s.size + z.size
    jax.tree.map(np.testing.assert_array_equal, unpack_state(packed, g), state)
