"""ScatterBrain against its equation in float64, weight by weight; the join of its two parts at extremes; the state."""

import numpy as np
import pytest

from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers.attention.scatter_brain import ScatterBrain, ScatterBrainConfig
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 12, 41


def truth(config, p, x):
    """Outputs of one document `(t, d)`: a matrix of weights for each head."""
    t, width = len(x), config.head_width
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    rows = p["random_features"]
    rows = np.concatenate([rows, -rows]) if config.paired else rows
    i, j = np.indices((t, t))
    heads = []
    for h in range(config.n_heads):
        mine = slice(h * width, (h + 1) * width)
        scaled = [y[:, mine] / width**0.25 for y in (q, k)]
        phi_q, phi_k = (np.exp(y @ rows.T - (y**2).sum(-1, keepdims=True) / 2) / np.sqrt(len(rows)) for y in scaled)
        weights = np.where(i - j < config.window, np.exp(scaled[0] @ scaled[1].T), phi_q @ phi_k.T) * np.tri(t)
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, mine])
    return np.concatenate(heads, axis=-1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**fields):
    return moved_mixer(ScatterBrainConfig(d_model=D, **fields))


def inputs(b=2, t=T):
    return 0.5 * np.random.default_rng(0).normal(size=(b, t, D))


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    "fields",
    [
        {"n_heads": 2, "window": 3, "n_features": 8, "qkv_bias": True, "out_bias": True},
        {"n_heads": 3, "window": 1, "n_features": 5, "paired": False},
        pytest.param({"window": 40, "n_features": 4}, marks=pytest.mark.slow),
        pytest.param({"window": 64, "n_features": 4, "head_dim": 5}, marks=pytest.mark.slow),
    ],
)
def test_equation(fields):
    """Kills: a window one off, a token counted in both parts or in none, two normalisers, features without their
    factor, a shift that is taken out and not put back."""
    mixer, p = make(**fields)
    x = inputs()
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    assert_computes(mixer, x, expected)


def test_features_are_a_buffer():
    """Kills random features that the optimizer moves, and a map that is not paired."""
    mixer = ScatterBrain(ScatterBrainConfig(d_model=12, n_heads=2, n_features=10), rngs=quick_rngs())
    assert isinstance(mixer.random_features, Buffer)
    assert mixer.random_features[...].shape == (5, 6)
