"""Zoology, H.15 to H.19: butterfly matrices as BaseConv. Kills: a half of a block in the other half."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory.kaleidoscope import butterfly, butterfly_factor, dense, transposed
from experiments.theory.routed_circuits import FactorProduct, permute

pytestmark = pytest.mark.full
RNG = np.random.default_rng(0)


def draw(n):
    """Diagonals of the factors of a butterfly matrix of n rows."""
    return RNG.normal(size=(int(np.log2(n)), 4, n // 2))


def check(factors, expected, *, n_layers, n_inputs):
    model, u = FactorProduct(factors, len(expected)), RNG.normal(size=(3, n_inputs))
    assert model.n_layers == n_layers
    y = jax.jit(model.__call__)(jnp.asarray(u, jnp.float32))
    expected = u @ expected.T
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_a_factor_by_hand():
    """Kills: D_2 and D_3 exchanged, blocks that are not next to each other, a shift by k."""
    d = np.arange(1.0, 17).reshape(4, 4)
    expected = np.zeros((8, 8))
    for block in range(2):
        for i in range(2):
            top, bottom, at = 4 * block + i, 4 * block + 2 + i, 2 * block + i
            expected[top, top], expected[top, bottom] = d[0, at], d[1, at]
            expected[bottom, top], expected[bottom, bottom] = d[2, at], d[3, at]
    np.testing.assert_array_equal(dense([butterfly_factor(4, d)]), expected)


def test_a_fourier_transform_is_a_butterfly_matrix():
    """Kills: factors of the sizes n to 2 in the other order, which no transform has."""
    n, factors = 8, []
    for k in (2, 4, 8):
        turns = np.tile(np.exp(-2j * np.pi * np.arange(k // 2) / k), n // k)
        one = np.ones(n // 2)
        factors.append(butterfly_factor(k, np.array([one, turns, one, -turns])))
    bits = [int(f"{i:03b}"[::-1], 2) for i in range(n)]
    product = np.eye(n, dtype=complex)
    for s, same, up, down in factors:
        product = (np.diag(same) + np.diag(up[: n - s], s) + np.diag(down[s:], -s)) @ product
    np.testing.assert_allclose(product, np.fft.fft(np.eye(n))[:, bits], rtol=0, atol=1e-12)


def test_layers():
    """Kills: H.16 with a layer for each row, H.18 with the corner cut off too early, M* that is not transposed."""
    n, w, e = 8, 2, 2
    factors = butterfly(draw(n))
    check(factors, dense(factors), n_layers=2 * 3 + 1, n_inputs=n)
    factors = []
    for _ in range(w):
        factors += transposed(butterfly(draw(e * n) / 2)) + butterfly(draw(e * n) / 2)
    check(factors, dense(factors)[:n, :n], n_layers=4 * w * 4 + 1, n_inputs=n)


def test_transposed():
    """Kills: factors in the same order, diagonals at the rows of their columns."""
    factors = butterfly(draw(16))
    np.testing.assert_allclose(dense(transposed(factors)), dense(factors).T, rtol=0, atol=1e-12)


def test_a_permutation_is_a_kaleidoscope_matrix():
    """Kills: a Benes network whose factors are not butterfly factors, or not of the sizes n to 2 to n."""
    n = 16
    factors = permute(RNG.permutation(n))
    assert [2 * factor.s for factor in factors] == [16, 8, 4, 2, 4, 8, 16]
    for factor in factors:
        upper = np.arange(n) % (2 * factor.s) < factor.s
        assert not factor.up[~upper].any()
        assert not factor.down[upper].any()
