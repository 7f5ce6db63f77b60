"""LongConv against its formula in float64; squashing, kernel dropout, initialisation and traits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers import Context
from jaxzoo.mixers.base import Inherited
from jaxzoo.mixers.conv.long_conv import LongConv, LongConvConfig, initial_window
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs
from tests.mixers.test_hyena import conv_truth

D, TAPS = 5, 11


def truth(config, p, u):
    taps = np.where(np.abs(p["kernel"]) > config.squash, p["kernel"] - config.squash * np.sign(p["kernel"]), 0)
    parts = [conv_truth(taps[:, c], u) + p["skip"][c] * u for c in range(config.n_channels)]
    z = np.concatenate(parts, axis=-1)
    z = z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))) / 2
    y = z @ p["out_proj.kernel"] + p["out_proj.bias"]
    return y[..., :D] / (1 + np.exp(-y[..., D:])) if config.output == "glu" else y


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"n_channels": 3, "squash": 0.4, "kernel_dropout": 0.5},
        {"output": "linear", "squash": 0.0, "n_channels": 2},
    ],
)
def test_formula(options):
    """Kills: a threshold that cuts but does not shrink, halves of the GLU exchanged, an approximate GELU, a skip of
    another channel, dropout without a key, a filter that wraps around; for inputs shorter and longer than the filter,
    at once and streamed."""
    config = LongConvConfig(d_model=D, n_taps=TAPS, **options)
    mixer, p = moved_mixer(config)

    for t in (7, 2 * TAPS + 1):
        x = np.random.default_rng(t).normal(size=(2, t, D))
        expected = truth(config, p, x)
        assert_computes(mixer, x, expected, 2e-5)


@pytest.mark.slow
def test_kernel_dropout():
    """Kills: dropout that falls on inputs or differs between rows, taps that are not scaled up, a skip that is dropped,
    a share exchanged for its complement. Impulses at the first token show the filter through the linear output."""
    config = LongConvConfig(d_model=50, n_taps=60, squash=0.0, kernel_dropout=0.2, output="linear")
    mixer = LongConv(config, rngs=quick_rngs())
    mixer.kernel[...] = 5 + jnp.abs(mixer.kernel[...])  # GELU keeps 5 and more, and no tap is near 0
    mixer.skip[...] = jnp.full_like(mixer.skip[...], 6.0)
    mixer.out_proj.kernel[...] = jnp.eye(50)
    x = jnp.zeros((2, 60, 50)).at[:, 0].set(1.0)
    plain, *dropped = (np.asarray(mixer(x, Context(key=key))) for key in (None, jax.random.key(1), jax.random.key(2)))
    np.testing.assert_allclose(plain[:, 0], 6 + np.asarray(mixer.kernel[0]) * np.ones((2, 1)), rtol=1e-5)
    kept = []
    for y in dropped:
        np.testing.assert_allclose(y[0], y[1], rtol=1e-5)
        taps = y[0] - 6 * (np.arange(60) == 0)[:, None]
        kept.append(taps > 1)
        np.testing.assert_allclose(kept[-1].mean(), 0.8, atol=0.03)
        expected = np.where(kept[-1], (plain[0] - 6 * (np.arange(60) == 0)[:, None]) / 0.8, 0)
        np.testing.assert_allclose(taps, expected, atol=1e-4)
    assert (kept[0] != kept[1]).mean() > 0.2


@pytest.mark.full
def test_initialisation_and_traits():
    """Kills: a kernel of the wrong scale or decayed, or with the learning rate of all, an output projection deaf to
    out_init_std, as many taps as somebody guessed."""
    model = Inherited(d_model=64, max_length=80, init_std=0.5, out_init_std=0.01)
    mixer = LongConv(LongConvConfig(n_channels=2).inherit(model), rngs=quick_rngs())
    assert mixer.kernel.shape == (80, 2, 64)
    np.testing.assert_allclose(np.asarray(mixer.kernel[...]).std(), 0.002, rtol=0.05)
    np.testing.assert_allclose(np.asarray(mixer.skip[...]).std(), 1, rtol=0.2)
    np.testing.assert_allclose(np.asarray(mixer.out_proj.kernel[...]).std(), 0.01, rtol=0.05)
    assert mixer.out_proj.kernel.shape == (128, 128)
    kernel, skip = traits_of(mixer.kernel), traits_of(mixer.skip)
    assert (kernel.decay, kernel.learning_rate_scale, skip.decay, skip.learning_rate_scale) == (False, 1 / 16, False, 1)
    decaying = LongConv(LongConvConfig(kernel_init="decay").inherit(model), rngs=quick_rngs())
    ratio = np.asarray(decaying.kernel[...])[:, 0] / initial_window(80, 64)
    np.testing.assert_allclose(ratio.std(), 0.02, rtol=0.05)


def test_initial_window():
    """Kills a window by channel and tap exchanged: channel 2 of 4 and tap 3 of 8 by hand."""
    np.testing.assert_allclose(initial_window(8, 4)[3, 2], np.exp(-3 / 8 * 2**0.5), rtol=1e-6)
    np.testing.assert_allclose(initial_window(8, 4)[3, 0], np.exp(-3 / 8), rtol=1e-6)
