"""BaseConv with input-dependent filters against its formula in float64, filter by filter; it is not causal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers import Context
from jaxzoo.mixers.conv.input_dependent_conv import InputDependentConv, InputDependentConvConfig
from tests.mixers.moved import moved_mixer, quick_rngs
from tests.mixers.refused import assert_refused
from tests.ops.test_input_dependent_filters import counts_truth

D, T = 4, 13


def heights_truth(config, p, u, tokens):
    """What stands in the filter for each distance."""
    if config.filter == "programmatic":
        return (counts_truth(tokens, config.pairs, config.ignored_token) > 0).astype(np.float64)
    c = u if config.correlate == "input" else u @ p["correlated.kernel"]
    heights = np.zeros(u.shape[:2])
    for row in range(len(u)):
        r = [(c[row, s:] * c[row, : T - s]).sum() for s in range(T)]
        for s in sorted(range(1, T), key=lambda s: -r[s])[: config.n_shifts]:
            heights[row, s] = 1 if config.taps == "spikes" else r[s] / r[0]
    return heights


def truth(config, p, u, tokens):
    heights, convolved = heights_truth(config, p, u, tokens), np.zeros_like(u)
    for i in range(T):
        for s in range(1, T):
            shift = s - (config.kernel == "value")
            if shift <= i:
                convolved[:, i] += heights[:, s, None] * u[:, i - shift]
    return (u @ p["projection.kernel"] + p["projection.bias"]) * (convolved + p["conv_bias"])


CASES = [
    {},
    {"kernel": "key", "pairs": "all", "ignored_token": 2},
    {"filter": "autocorrelation", "n_shifts": 3},
    {"filter": "autocorrelation", "n_shifts": 99, "taps": "correlations", "kernel": "key"},
    {"filter": "autocorrelation", "n_shifts": 4, "taps": "correlations", "correlate": "projection"},
]


def draw(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(3, T, D)), rng.integers(0, 30, (3, T)).astype(np.int32)


@pytest.mark.parametrize("options", CASES)
def test_formula(options):
    """Kills: a shift by one too many, the filter of another row, spikes at distance 0, correlations that are not over
    r_0, a bias in front of the filter, an option that nothing reads."""
    config = InputDependentConvConfig(d_model=D, **options)
    mixer, p = moved_mixer(config)
    u, tokens = draw()
    heights = heights_truth(config, p, u, tokens)
    assert (heights.any(axis=1)).all(), "every row has a distance"
    expected = truth(config, p, u, tokens)
    y = jax.jit(mixer.__call__)(jnp.asarray(u, jnp.float32), Context(tokens=jnp.asarray(tokens)))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.full
@pytest.mark.parametrize("pairs", ["nearest", "all"])
def test_the_programmatic_filter_sees_later_tokens(pairs):
    """Kills a promise to see the future that is not kept, and one that goes further than the paper's: the last token's
    id changes earlier outputs, its vector none."""
    mixer, _ = moved_mixer(InputDependentConvConfig(d_model=D, pairs=pairs))
    assert not mixer.config.capabilities.causal
    x = jnp.asarray(draw()[0], jnp.float32)
    distinct = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (3, T))
    repeated = distinct.at[:, -1].set(T - 4)
    plain = mixer(x, Context(tokens=distinct))
    assert np.abs(mixer(x, Context(tokens=repeated)) - plain)[:, 3:-1].max(axis=(0, 2)).min() > 1e-2
    moved_last = mixer(x.at[:, -1].set(5.0), Context(tokens=repeated))
    np.testing.assert_allclose(moved_last[:, :-1], mixer(x, Context(tokens=repeated))[:, :-1], atol=1e-5)


@pytest.mark.full
def test_tokens_of_the_programmatic_filter():
    """Kills a filter of no comparisons where nobody gave the ids, and ids that the other filter asks for."""
    x = jnp.asarray(draw()[0], jnp.float32)
    programmatic = InputDependentConv(InputDependentConvConfig(d_model=D), rngs=quick_rngs())
    with pytest.raises(ValueError, match="InputDependentConv reads token ids, and got none"):
        programmatic(x)
    options = {"filter": "autocorrelation"}
    assert InputDependentConv(InputDependentConvConfig(d_model=D, **options), rngs=quick_rngs())(x).shape == x.shape


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("t", [0, 1, 2])
def test_short_sequences(options, t):
    """Kills a choice among no distances: one token has none, and the output is the gate times the bias."""
    mixer, p = moved_mixer(InputDependentConvConfig(d_model=D, **options))
    u, tokens = (x[:, :t] for x in draw())
    y = mixer(jnp.asarray(u, jnp.float32), Context(tokens=jnp.asarray(tokens)))
    assert y.shape == u.shape
    if t == 1:
        expected = (u @ p["projection.kernel"] + p["projection.bias"]) * p["conv_bias"]
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_flops_by_hand():
    """Kills a transform that is forgotten: d = 10, 8 tokens in transforms of 15 points, 9 of 18."""
    conv = 10 * 18 * (5 * np.log2(18) + 3) / 9
    assert InputDependentConvConfig(d_model=10).flops_per_token(9) == pytest.approx(200 + conv)
    options = {"filter": "autocorrelation", "taps": "correlations", "correlate": "projection"}
    assert InputDependentConvConfig(d_model=10, **options).flops_per_token(9) == pytest.approx(400 + 1.5 * conv)


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"filter": "long"}, "filter='long' must be one of 'programmatic', 'autocorrelation'"),
        ({"kernel": "query"}, "kernel='query' must be one of 'value', 'key'"),
        ({"pairs": "some"}, "pairs='some' must be one of 'nearest', 'all'"),
        ({"ignored_token": -1}, "ignored_token=-1 must not be negative"),
        ({"n_shifts": 0}, "n_shifts=0 must be positive"),
        ({"correlate": "projection"}, "correlate='projection' needs taps='correlations'"),
    ]
    assert_refused(functools.partial(InputDependentConvConfig, d_model=4), cases)
