"""Landmark CAT against equation 1 in float64, query by query."""

import numpy as np
import pytest

from jaxzoo.layers.implicit_filter import position_features
from jaxzoo.mixers import LandmarkCAT, LandmarkCATConfig
from tests.mixers.attention_truth import rotated
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 12, 19


def convolved(x, taps):
    """`(t, k)` with as many taps as there are tokens, one at a time."""
    return sum(taps[u] * np.pad(x, ((u, 0), (0, 0)))[: len(x)] for u in range(min(len(taps), len(x))))


def long_taps(config, p, head, t):
    """F_0 .. F_{t-1} of a head of keys."""
    u, size = np.arange(t), config.block_size
    if config.smoothing == "mean":
        return np.where(u < size, 1 / size, 0)
    if config.smoothing == "implicit":
        p = {name.removeprefix("long_filter."): value for name, value in p.items()}
        hidden = np.maximum(position_features(size, 3) @ p["kernel_1"] + p["bias_1"], 0)
        return np.pad(hidden @ p["kernel_2"][:, head] + p["bias_2"][head], (0, max(t - size, 0)))
    rho = np.exp(-np.exp(p["log_rate"][head])) if config.learn_rho else config.rho or np.exp(-1 / size)
    return (1 - rho) * rho**u


def parts_of(config, p, u):
    """Filtered queries, keys and values by head, each `(t, k)`."""
    parts = {}
    for name, letter in (("queries", "q"), ("keys", "k"), ("values", "v")):
        y = (u @ p[f"{letter}_proj.kernel"] + p.get(f"{letter}_proj.bias", 0)).reshape(len(u), -1, config.head_width)
        taps = p.get(f"head_filters.{name}", np.ones((1, y.shape[1])))
        parts[name] = [convolved(y[:, h], taps[:, h]) for h in range(y.shape[1])]
    return parts


def truth(config, p, u):
    """Outputs `(t, d)` of one document."""
    parts, size, width = parts_of(config, p, u), config.block_size, config.head_width
    fading = config.positions == "xpos"
    turn = (lambda x, way: x) if config.positions == "none" else lambda x, way: rotated(x, fading=way * fading)
    heads = []
    for h, q in enumerate(parts["queries"]):
        g = h * config.kv_heads // config.n_heads
        k, v = parts["keys"][g], parts["values"][g]
        smooth = convolved(k, long_taps(config, p, g, len(u)))
        scores, weights = turn(q, 1) @ turn(k, -1).T / np.sqrt(width), np.zeros((len(u), len(u)))
        for i in range(len(u)):
            own = i // size
            landmarks = np.array([smooth[n * size + size - 1] @ q[i] / np.sqrt(width) for n in range(own)])
            for n in np.argsort(-landmarks)[: config.n_retrieved]:
                share = np.exp(landmarks[n]) / np.exp(landmarks).sum() if config.gate == "softmax" else 1
                weights[i, n * size : (n + 1) * size] = share
            weights[i, own * size : i + 1] = 1
        weights = weights * np.exp(scores - scores.max())
        heads.append(weights @ v / weights.sum(1, keepdims=True))
    return np.concatenate(heads, axis=1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**options):
    return moved_mixer(LandmarkCATConfig(d_model=D, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"block_size": 4}, marks=pytest.mark.full),
        {"block_size": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "positions": "rotary", "qkv_bias": True},
        {"block_size": 5, "n_heads": 2, "smoothing": "mean", "n_retrieved": 2, "filter_keys": False, "out_bias": True},
        {"block_size": 4, "n_heads": 3, "n_kv_heads": 3, "smoothing": "implicit", "filter_queries": True, "n_taps": 6},
        {"block_size": 5, "n_heads": 2, "positions": "xpos", "xpos_scale_base": 16.0},
        {"block_size": 2, "rho": 0.9, "learn_rho": False, "gate": "softmax"},
        pytest.param(
            {"block_size": 3, "learn_rho": False, "filter_values": False, "positions": "rotary"}, marks=pytest.mark.full
        ),
    ],
)
def test_equation(options):
    """Kills: landmarks of rotated keys, a query that meets them rotated, smoothed keys in local attention, the short
    filter after the long one, a rho of the model and not of the head, an option that nothing reads; all at once, and
    in calls that are cut inside blocks and at their borders."""
    mixer, p = make(**options)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = np.stack([truth(mixer.config, p, row) for row in x])

    assert_computes(mixer, x, expected, 2e-5)


@pytest.mark.parametrize("block_size", [8, 64])
def test_rho_starts_as_in_proposition_2(block_size):
    """Kills: another start than e^(-1/B), taps without their sum of 1, and a carry of another power."""
    mixer = LandmarkCAT(LandmarkCATConfig(d_model=4, n_heads=2, block_size=block_size), rngs=quick_rngs())
    taps, carry = mixer._long_filter()
    rho = np.exp(-1 / block_size)
    np.testing.assert_allclose(taps, np.repeat((1 - rho) * rho ** np.arange(block_size)[:, None], 2, axis=1), rtol=1e-5)
    np.testing.assert_allclose(carry, np.full(2, np.exp(-1)), rtol=1e-6)
    assert not hasattr(LandmarkCAT(LandmarkCATConfig(d_model=4, learn_rho=False), rngs=quick_rngs()), "log_rate")
