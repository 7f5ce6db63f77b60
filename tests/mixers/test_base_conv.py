"""BaseConv against the three published formulas in float64, and the implicit filter against Listing 2."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.implicit_filter import position_features
from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.base import Inherited
from jaxzoo.mixers.conv.base_conv import BaseConv, BaseConvConfig
from tests.mixers.moved import abstract_mixer, moved_mixer, quick_rngs
from tests.pallas_kernels.shared import full, slow

D, TAPS = 5, 11
FILTERS, FORMS = ("short", "long", "implicit"), ("paper", "listing", "release")


def filter_truth(config, p):
    """The taps of the filter, from the parameters."""
    if config.filter != "implicit":
        return p["taps"]
    n, bands = config.filter_length, (config.emb_dim - 1) // 2
    taps = []
    for a in range(n):
        frequencies = [1e-4 + i * (bands - 1 - 1e-4) / max(bands - 1, 1) for i in range(bands)]
        turned = np.exp(-1j * 2 * np.pi * a / n * np.array(frequencies))
        features = np.concatenate([[a / (n - 1)], turned.real, turned.imag])
        hidden = np.maximum(features @ p["implicit_filter.kernel_1"] + p["implicit_filter.bias_1"], 0)
        taps.append(hidden @ p["implicit_filter.kernel_2"] + p["implicit_filter.bias_2"])
    return np.array(taps)


def truth(config, p, u):
    """The formula of the form, with the convolution as a loop over taps."""
    taps, convolved = filter_truth(config, p), np.zeros_like(u)
    for i in range(u.shape[1]):
        for a in range(min(i + 1, len(taps))):
            convolved[:, i] += taps[a] * u[:, i - a]
    gate = u @ p["projection.kernel"] + p["projection.bias"]
    if config.form == "paper" or config.filter == "short":
        convolved = convolved + p["conv_bias"]
    elif config.form == "release":
        convolved = convolved + u
    if config.activation == "silu":
        gate, convolved = (x / (1 + np.exp(-x)) for x in (gate, convolved))
    return gate * convolved + (0 if config.form == "paper" else u)


def make(filter, form, **options):
    config = BaseConvConfig(d_model=D, filter=filter, form=form, emb_dim=5, filter_width=6, **options)
    return config.inherit(Inherited(d_model=D, max_length=TAPS, init_std=0.02, out_init_std=0.02))


CORE = [("short", "paper", "silu"), ("long", "listing", "none"), ("implicit", "release", "silu")]
FULL = [("implicit", "paper", "none"), ("implicit", "listing", "silu"), ("short", "release", "none")]
ALL = itertools.product(FILTERS, FORMS, ("none", "silu"))


@pytest.mark.parametrize(
    ("filter", "form", "activation"),
    [*CORE, *(full(*x) for x in FULL), *(slow(*x) for x in ALL if x not in (*CORE, *FULL))],
)
def test_published_formulas(filter, form, activation):
    """Kills a residual or bias too many or too few, a filter in reverse, taps beyond the filter's length, and a SiLU in
    front of a bias or after the residual: all three forms, for inputs shorter and longer than the filter."""
    config = make(filter, form, activation=activation)
    mixer, parameters = moved_mixer(config)
    for t in (4, 2 * TAPS + 1):
        u = np.random.default_rng(t).normal(size=(2, t, D)).astype(np.float32)
        expected = truth(config, parameters, u.astype(np.float64))
        y = jax.jit(mixer.__call__)(jnp.asarray(u))
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_parameters_of_each_form():
    """Kills a bias that a form does not have: b2 exists for short filters and in the paper's form alone."""
    for filter in FILTERS:
        for form in FORMS:
            mixer = abstract_mixer(make(filter, form))
            assert hasattr(mixer, "conv_bias") == (filter == "short" or form == "paper")


def test_position_features_at_the_published_width():
    """Kills frequencies that start at 1 or 0: at emb_dim 3 the one frequency is 1e-4, sines are negative."""
    features = position_features(8, 3)
    np.testing.assert_allclose(features[:, 0], np.arange(8) / 7, rtol=1e-6)
    angle = 1e-4 * 2 * np.pi * np.arange(8) / 8
    np.testing.assert_allclose(features[:, 1], np.cos(angle), rtol=1e-6)
    np.testing.assert_allclose(features[:, 2], -np.sin(angle), rtol=1e-5)


@pytest.mark.parametrize(
    ("form", "options", "std"),
    [
        ("paper", {}, 0.1),
        *(pytest.param(form, {}, 1.0, marks=pytest.mark.full) for form in ("listing", "release")),
        ("release", {"long_init_std": 0.3}, 0.3),
    ],
)
def test_initial_long_taps(form, options, std):
    """Kills an initialisation that ignores form or field: 1/sqrt(100 taps) for the paper's form, 1 as
    published."""
    config = BaseConvConfig(d_model=64, filter="long", n_taps=100, form=form, **options)
    taps = np.asarray(BaseConv(config, rngs=quick_rngs()).taps[...])
    assert taps.shape == (100, 64)
    np.testing.assert_allclose(taps.std(), std, rtol=0.05)


def test_initial_implicit_filter():
    """Kills one initialisation for all forms: the release resets the MLP to N(0, init_std), the others are
    uniform."""
    config = BaseConvConfig(d_model=400, filter="implicit", n_taps=9, form="release", init_std=0.02)
    released = BaseConv(config, rngs=quick_rngs()).implicit_filter
    np.testing.assert_allclose(np.asarray(released.kernel_2[...]).std(), 0.02, rtol=0.05)
    assert not released.bias_1[...].any()
    assert not released.bias_2[...].any()
    listed = BaseConv(dataclasses.replace(config, form="listing"), rngs=quick_rngs()).implicit_filter
    for values in (listed.kernel_2, listed.bias_2):
        np.testing.assert_allclose(np.asarray(values[...]).std(), 0.25 / np.sqrt(3), rtol=0.1)
        assert np.abs(values[...]).max() <= 0.25
    assert np.abs(listed.kernel_1[...]).max() > 0.5


@pytest.mark.parametrize(("form", "decays"), [("paper", True), ("listing", False), ("release", True)])
def test_decay_of_an_implicit_filter(form, decays):
    """Kills: a `filter_decay` that a weight of the MLP does not hear of, or that reaches projection or biases."""
    config = BaseConvConfig(d_model=D, filter="implicit", n_taps=TAPS, form=form, filter_decay=decays)
    mixer = BaseConv(config, rngs=quick_rngs())
    network = mixer.implicit_filter
    assert [traits_of(kernel).decay for kernel in (network.kernel_1, network.kernel_2)] == [decays] * 2
    others = (mixer.projection.kernel, mixer.projection.bias, network.bias_1, network.bias_2)
    assert [traits_of(other).decay for other in others] == [True, False, False, False]
