"""xPos: scores against the paper's formula in float64, near and far, and the ends of its range."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.rotary import rotary
from jaxzoo.layers.xpos import centre_of, xpos_factors

N, HEAD = 8, 10
LAST = 32860
"""The last position at the paper's base of 512: 116 bits of the fastest pair, whose factor is 0.4 / 1.4."""


def scores_float64(q, k, distance, base=512.0, interleaved=False):
    """`(t, s)`: over all pairs `zeta_i^(m / B) Re(q_i conj(k_i) e^(i m theta_i))` at distance m, and the rest."""
    q, k = np.float64(q), np.float64(k)
    total = q[:, N:] @ k[:, N:].T
    for i in range(N // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + N // 2)
        pair = (q[:, a] + 1j * q[:, b])[:, None] * (k[:, a] - 1j * k[:, b])[None]
        zeta = (2 * i / N + 0.4) / 1.4
        total = total + zeta ** (distance / base) * (pair * np.exp(1j * distance * 10000.0 ** (-2 * i / N))).real
    return total


@functools.partial(jax.jit, static_argnames=("keys", "base", "interleaved"))
def embedded(x, positions, keys, base=512.0, interleaved=False):
    positions = jnp.asarray(positions, jnp.int32)[None]
    lengths = xpos_factors(positions, N, scale_base=base, keys=keys)
    return rotary(x[None, :, None], positions, channels=N, interleaved=interleaved, lengths=lengths)[0, :, 0]


def rows(t, seed):
    return jax.random.normal(jax.random.key(seed), (t, HEAD))


@pytest.mark.parametrize(
    ("start", "interleaved"),
    [
        (16_430 - 700, True),
        *(pytest.param(start, False, marks=pytest.mark.full) for start in (0, 16_430 - 700, LAST - 1400)),
    ],
)
def test_scores_depend_on_the_distance_alone(start, interleaved):
    """Kills: keys that fade as queries do, a fading of the slow pairs, gamma or base elsewhere, the neighbour's factor,
    float32 exponents that lose digits far from the middle."""
    places = start + np.arange(0, 1401, 56)
    q, k = rows(len(places), 0), rows(len(places), 1)
    y, z = (embedded(x, places, keys, interleaved=interleaved) for x, keys in ((q, False), (k, True)))
    found = np.float64(y) @ np.float64(z).T
    expected = scores_float64(q, k, places[:, None] - places[None], interleaved=interleaved)
    seen = np.tri(len(places), dtype=bool)  # among the others factors grow with the distance
    np.testing.assert_allclose(found[seen], expected[seen], rtol=0, atol=2e-5)


@pytest.mark.slow
def test_the_whole_range():
    """Kills: infinities or lost pairs at the ends. A query at the last position and keys from 0 on."""
    places = np.array([0, 1000, 16_430, 30_000, LAST - 512, LAST])
    q, k = rows(1, 0), rows(len(places), 1)
    found = embedded(q, np.array([LAST]), False) @ embedded(k, places, True).T
    np.testing.assert_allclose(found, scores_float64(q, k, LAST - places[None]), rtol=0, atol=2e-5)
    zeta = (2 * np.arange(N // 2) / N + 0.4) / 1.4
    for keys in (False, True):
        factors = np.float64(xpos_factors(jnp.asarray([places], jnp.int32), N, scale_base=512.0, keys=keys))
        assert 2.0**-58 <= factors.min() < factors.max() <= 2.0**58
        ratio = factors[0] / factors[0, 2]
        expected = zeta ** ((places[:, None] - places[2]) * (-1 if keys else 1) / 512)
        np.testing.assert_allclose(ratio, expected, rtol=1e-6)


def test_future_keys_stay_finite():
    """Kills: infinities after a mask, whose products become NaN: the first query and the last key, in bfloat16 too."""
    for dtype in (jnp.float32, jnp.bfloat16):
        q, k = rows(1, 0).astype(dtype), rows(1, 1).astype(dtype)
        score = jnp.vdot(embedded(q, np.array([0]), False), embedded(k, np.array([LAST]), True))
        assert score.dtype == dtype
        assert np.isfinite(np.float32(score))
        assert abs(np.float32(score)) > 2.0**100


@pytest.mark.full
@pytest.mark.parametrize("start", [0, LAST - 40])
def test_gradients_far_from_the_middle(start):
    """Kills: gradients that underflow or overflow on their way through factors of 2^58, even where they are small."""
    places = start + np.arange(0, 41, 8)
    q, k = rows(len(places), 0), rows(len(places), 1)
    cotangent = 1e-6 * np.tril(np.random.default_rng(2).normal(size=(len(places),) * 2)).astype(np.float32)
    score = lambda q, k: embedded(q, places, False) @ embedded(k, places, True).T  # noqa: E731
    found = jax.jit(lambda q, k: jax.vjp(score, q, k)[1](jnp.asarray(cotangent)))(q, k)
    distance = places[:, None] - places[None]
    for i in range(HEAD):
        unit = np.eye(HEAD)[i][None]
        for x, pulled, turned in ((k, found[0], False), (q, found[1], True)):
            # The score is linear: its gradient by channel i of a query is the score of a unit vector.
            ones = np.repeat(unit, len(places), axis=0)
            expected = (
                (cotangent * scores_float64(x, ones, distance)).sum(0)
                if turned
                else (cotangent * scores_float64(ones, x, distance)).sum(1)
            )
            np.testing.assert_allclose(pulled[:, i], expected, rtol=0, atol=1e-10)


@pytest.mark.full
def test_beyond_the_range():
    """Kills: positions that quietly stop to fade, and a row whose neighbour is beyond the range."""
    assert 2 * centre_of(512.0) == LAST
    positions = jnp.asarray([[0, LAST, LAST + 1], [-1, 5, 2**31 - 1]], jnp.int32)
    factors = xpos_factors(positions, N, scale_base=512.0, keys=True)
    np.testing.assert_array_equal(np.isnan(factors).any(-1), [[False, False, True], [True, False, True]])
    with pytest.raises(ValueError, match="32862 tokens must be at most 32861, the positions at xpos_scale_base=512"):
        jax.eval_shape(lambda p: xpos_factors(p, N, scale_base=512.0, keys=False), jnp.zeros((1, LAST + 2), jnp.int32))


@pytest.mark.full
@pytest.mark.parametrize("base", [16.0, 1e9])
def test_other_bases(base):
    """Kills: a range that does not grow with the base, and integers that wrap."""
    last = 2 * centre_of(base)
    assert last == (1026 if base == 16 else 2**31 - 2)
    places = last - np.array([40, 17, 0])
    q, k = rows(3, 0), rows(3, 1)
    found = np.float64(embedded(q, places, False, base)) @ np.float64(embedded(k, places, True, base)).T
    expected = scores_float64(q, k, places[:, None] - places[None], base)
    np.testing.assert_allclose(np.tril(found), np.tril(expected), rtol=0, atol=2e-5)
