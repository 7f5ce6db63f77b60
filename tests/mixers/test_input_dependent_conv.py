"""BaseConv with input-dependent filters against its formula in float64, filter by filter; it is not causal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers import Context
from jaxzoo.mixers.conv.input_dependent_conv import InputDependentConvConfig
from jaxzoo.ops.input_dependent_filters import naive_match_counts
from tests.mixers.moved import moved_mixer

D, T = 4, 13


def heights_truth(config, p, u, tokens):
    """Value of the filter at each distance."""
    if config.filter == "programmatic":
        counts = naive_match_counts(tokens, pairs=config.pairs, ignored=config.ignored_token)
        return np.float64(counts > 0)
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
