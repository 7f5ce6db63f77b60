"""Zoology, H.7 to H.11: primitives of BaseConv. Kills: a filter or gate in another row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory.base_conv_primitives import (
    BaseConvProgram,
    add,
    convolve,
    gate,
    linear,
    remember,
    shift_down,
    shift_up,
)
from jaxzoo.mixers.conv.base_conv import BaseConv

ROWS, WIDTH = 23, 3
RNG = np.random.default_rng(0)


def check(program, u, expected, *, n_layers, delay=0):
    """Outputs within rounding of float32 Fourier transforms, sizes (N, L, d, N + delay, (L + 1) d)."""
    model = BaseConvProgram(program, u.shape[1])
    assert all(isinstance(layer, BaseConv) for layer in model.layers)
    assert (len(model.layers), model.delay) == (n_layers, delay)
    assert {layer.config.d_model for layer in model.layers} == {(n_layers + 1) * u.shape[2]}
    y = jax.jit(model)(jnp.asarray(u, jnp.float32))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))


def draw(*shape):
    return RNG.normal(size=shape)


def down(u, s):
    """Shifts rows down by s, or up by -s, and fills with zeros."""
    y = np.zeros_like(u)
    n = u.shape[1]
    if abs(s) < n:
        y[:, max(s, 0) : n + min(s, 0)] = u[:, max(-s, 0) : n - max(s, 0)]
    return y


def convolved(h, u):
    return sum(h[a] * down(u, a) for a in range(len(h)))


def test_the_operations_of_a_layer():
    """Kills: Lemma H.7 with a bias of the wrong factor, a gate of another layer or row, a filter in reverse."""
    u, weight, h, v = draw(2, ROWS, WIDTH), draw(WIDTH, WIDTH), draw(9, WIDTH), draw(ROWS, WIDTH)
    check(linear(weight), u, u @ weight, n_layers=1)
    check(convolve(h, ROWS), u, convolved(h, u), n_layers=1)
    check(gate(v), u, v * u, n_layers=1)
    check(linear(weight) + gate(v) + convolve(h, ROWS), u, convolved(h, v * (u @ weight)), n_layers=3)


@pytest.mark.parametrize("s", [7, *(pytest.param(s, marks=pytest.mark.full) for s in (0, 1, ROWS - 1, ROWS))])
def test_shifts(s):
    """Kills: a shift by s + 1, as H.8 prints it; rows that wrap around; a window that is read s rows off."""
    u = draw(2, ROWS, WIDTH)
    check(shift_down(ROWS, WIDTH, s), u, down(u, s), n_layers=1)
    check(shift_up(ROWS, WIDTH, s), u, down(u, -s), n_layers=1, delay=s)


@pytest.mark.parametrize("n", [4, *(pytest.param(n, marks=pytest.mark.full) for n in (1, ROWS // 2))])
def test_running_sum(n):
    """Kills: ones in the wrong half, x that stays, S that is added twice, rows below that are not 0."""
    x, total = draw(2, n, WIDTH), draw(2, n, WIDTH)
    rest = np.zeros((2, ROWS - 2 * n, WIDTH))
    expected = np.concatenate([np.ones_like(x), total + x, rest], axis=1)
    check(add(n, WIDTH), np.concatenate([x, total, rest], axis=1), expected, n_layers=2)


@pytest.mark.parametrize(
    ("n", "m", "s"),
    [(5, 3, 2), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((1, 1, 0), (4, 6, 1), (3, 2, 4)))],
)
def test_remember(n, m, s):
    """Kills: v filtered or scaled, `h * x` cut to n rows, a window at the wrong rows, remains of the copies."""
    x, v, h, p = draw(2, n, WIDTH), draw(2, m, WIDTH), draw(s + 1, WIDTH), draw(n + s, WIDTH)
    u = np.zeros((2, ROWS, WIDTH))
    u[:, :n], u[:, n + s : n + s + m] = x, v
    expected = u.copy()
    expected[:, : n + s] = p * convolved(h, u)[:, : n + s]
    check(remember(h, p, m=m), u, expected, n_layers=2, delay=n + m + s)
