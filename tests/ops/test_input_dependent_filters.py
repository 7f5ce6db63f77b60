"""Input-dependent filters compared with their naive forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.input_dependent_filters import (
    autocorrelation,
    conv_rows,
    match_counts,
    naive_autocorrelation,
    naive_conv_rows,
    naive_match_counts,
    strongest_lags,
)
from tests.ops.shared import in_float64


@pytest.mark.parametrize(
    ("pairs", "ignored"),
    [
        ("nearest", 0),
        ("all", None),
        *(pytest.param(*x, marks=pytest.mark.full) for x in (("nearest", None), ("all", 2))),
    ],
)
def test_match_counts(pairs, ignored):
    """Kills: a match that wraps around or crosses rows, an unstable order, a pair that is counted at distance 0, an
    ignored token that still matches; a token with many occurrences, and none at all."""
    for t in (0, 1, 2, 17):
        tokens = np.random.default_rng(t).integers(0, 5, (3, t)).astype(np.int32)
        found = jax.jit(lambda x: match_counts(x, pairs=pairs, ignored=ignored))(tokens)
        np.testing.assert_array_equal(found, naive_match_counts(tokens, pairs=pairs, ignored=ignored))
    distinct = np.arange(17, dtype=np.int32)[None]
    assert not np.asarray(jax.jit(lambda x: match_counts(x, pairs=pairs))(distinct)).any()


@pytest.mark.parametrize("t", [1, *(pytest.param(t, marks=pytest.mark.full) for t in (2, 30)), 13])
def test_autocorrelation_and_convolution(t, default_compilation):
    """Kills a product that wraps around, rows that share a filter, a filter in reverse; in values and gradients."""
    rng = np.random.default_rng(t)
    x, taps, dr, dy = (rng.normal(size=shape) for shape in ((2, t, 3), (2, t), (2, t), (2, t, 3)))

    def run(ops, x, taps, dr, dy):
        r, pull_r = jax.vjp(ops[0], x)
        y, pull_y = jax.vjp(lambda taps: ops[1](x, taps), taps)
        return r, y, pull_r(dr)[0], pull_y(dy)[0]

    naive = functools.partial(run, (naive_autocorrelation, naive_conv_rows))
    truth = in_float64(jax.jit(naive), x, taps, dr, dy)
    fast = jax.jit(functools.partial(run, (autocorrelation, conv_rows)))
    for found, expected in zip(fast(*(np.float32(z) for z in (x, taps, dr, dy))), truth, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def test_strongest_lags():
    """Kills distance 0 among the strongest, and more distances than there are."""
    r = jnp.asarray([[9.0, -1.0, 3.0, 2.0, 3.0], [0.0, 1.0, 1.0, 1.0, 5.0]])
    strongest = jax.jit(strongest_lags, static_argnums=1)
    np.testing.assert_array_equal(strongest(r, 2), [[0, 0, 1, 0, 1], [0, 1, 0, 0, 1]])
    np.testing.assert_array_equal(strongest(r, 9), [[0, 1, 1, 1, 1]] * 2)
    assert not np.asarray(strongest(r[:, :1], 3)).any()
