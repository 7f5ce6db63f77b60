"""Based, Theorem F.30 and its primitives. Kills: a bit of another number, a row that is not remembered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory.base_conv_primitives import BaseConvProgram, convolve, gate, linear, shift_up
from experiments.theory.base_conv_subroutines import (
    binary,
    cumulative_sum,
    one_hot,
    recall,
    recall_at_once,
    remember,
    repeat_columns,
    repeat_matrix,
    sum_column_blocks,
)
from experiments.theory.parameters import apply

pytestmark = pytest.mark.full
RNG = np.random.default_rng(0)


def check(program, u, expected, *, n_layers):
    model = BaseConvProgram(program, u.shape[1])
    assert len(model.layers) == n_layers
    y = jax.jit(model.__call__)(jnp.asarray(u, jnp.float32))[..., : expected.shape[2]]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))


def test_primitives():
    """Kills: W transposed, as F.39 prints it; copies of a matrix a row too far; blocks that are sums of neighbors."""
    u = RNG.normal(size=(2, 6, 6))
    check(repeat_columns(2, 3), u, u[:, :, [0, 0, 0, 1, 1, 1]], n_layers=1)
    short = u * (np.arange(6) < 2)[:, None]
    check(repeat_matrix(2, 3, 6), short, u[:, [0, 1, 0, 1, 0, 1]], n_layers=1)
    check(cumulative_sum(6, 6), u, np.cumsum(u, axis=1), n_layers=1)
    sums = np.zeros_like(u)
    sums[..., :2] = u.reshape(2, 6, 3, 2).sum(2)
    check(sum_column_blocks(6, 2), u, sums, n_layers=1)


def test_remember():
    """Kills: rows before or after that f changes, a gate counted from row 0, a bias in the rows that are kept, a shift
    that moves only one copy."""
    d, n, rows = 2, 9, range(3, 6)
    u = np.zeros((2, n, 2 * d))
    u[..., :d] = RNG.normal(size=(2, n, d))
    u[:, rows.stop, :d] = 0  # f may write one row more
    weight, taps, factors = RNG.normal(size=(d, d)), RNG.normal(size=(2, d)), RNG.normal(size=(4, d))
    x = np.zeros((2, 4, d))
    x[:, :3] = u[:, 3:6, :d]
    f = linear(weight) + convolve(taps, 4) + gate(factors)
    mapped = x @ weight
    expected = u[..., :d].copy()
    expected[:, 3:7] = factors * (taps[0] * mapped + taps[1] * np.pad(mapped, ((0, 0), (1, 0), (0, 0)))[:, :4])
    check(remember(f, rows, n), u, expected, n_layers=3 + 3)
    up = u[..., :d].copy()
    up[:, 3:6] = np.pad(x[:, 1:3], ((0, 0), (0, 1), (0, 0)))
    check(remember(shift_up(n, d, 1), rows, n), u, up, n_layers=1 + 3)


def test_one_hot():
    """Kills: bits in reverse, a number for 0, a single bit that is squared or lost, n = 2^k with k bits, as in F.44."""
    for n, n_layers in ((8, 4), (20, 5)):
        numbers = np.arange(n + 1)
        layers = one_hot(n, n * n.bit_length())
        assert len(layers) == n_layers
        u = np.zeros((1, n + 1, n * n.bit_length()), np.float32)
        u[0, :, : n.bit_length()] = binary(numbers, n)
        y = jax.jit(lambda u, layers=layers: apply(layers, u))(u)[0, :, :n]
        np.testing.assert_array_equal(np.round(y, 4), np.eye(n + 1)[:, 1:])


@pytest.mark.parametrize(("make", "n_layers"), [(recall, 6 + 3), (recall_at_once, 4)])
def test_recall_of_one_hot_tokens(make, n_layers):
    """Kills: F.30 with later keys, the key in place of the value, two queries mixed up, an answer without a match."""
    d, n = 20, 20
    keys = np.array([RNG.permutation(d) for _ in range(3)])
    values, queries = RNG.integers(0, d, (2, 3, n))
    queries[:, 5] = keys[:, 5]  # the C of F.30 includes the own row
    seen = (keys[:, None] == queries[:, :, None]) & np.tri(n, dtype=bool)
    expected = np.einsum("bij,bjv->biv", seen.astype(float), np.eye(d)[values])
    assert 5 < expected.sum() < 3 * n - 5
    layers = make(d, n)
    assert len(layers) == n_layers
    u = np.concatenate([np.eye(d)[keys], np.eye(d)[values], np.eye(d)[queries]], axis=2)
    y = jax.jit(lambda u: apply(layers, u))(jnp.asarray(u, jnp.float32))[..., :d]
    np.testing.assert_array_equal(np.round(y, 3), expected)
