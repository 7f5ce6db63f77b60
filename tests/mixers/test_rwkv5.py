"""RWKV-5's time mixing against its equations in float64, token by token and head by head; initial values by hand."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.rwkv5 import RWKV5TimeMix, RWKV5TimeMixConfig
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 6, 9


def truth(config, p, x):
    """Outputs `(b, t, d)`, from sums over all earlier tokens instead of a state."""
    before = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], axis=1)
    r, k, v, g = (
        (p[f"time_mix_{name}"] * x + (1 - p[f"time_mix_{name}"]) * before) @ p[f"{name}.kernel"]
        for name in ("receptance", "key", "value", "gate")
    )
    a, u, width = np.exp(-np.exp(p["time_decay"])), p["time_first"], config.head_width
    heads = []
    for h in range(config.n_heads):
        own, rows = slice(h * width, (h + 1) * width), []
        for t in range(x.shape[1]):
            weights = [(r[:, t, own] * a[h] ** (t - 1 - i) * k[:, i, own]).sum(-1) for i in range(t)]
            weights.append((r[:, t, own] * u[h] * k[:, t, own]).sum(-1))
            o = sum(weight[:, None] * v[:, i, own] for i, weight in enumerate(weights))
            o = o - o.mean(-1, keepdims=True)
            rows.append(o / np.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps))
        heads.append(np.stack(rows, axis=1))
    y = np.concatenate(heads, axis=-1) * p["norm_scale"] + p["norm_bias"]
    return (y * g / (1 + np.exp(-g))) @ p["output.kernel"]


@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 3, "value_width": 15, "norm_eps": 0.3, "layer_index": 2, "n_layers": 4},
        pytest.param({"n_heads": 2}, marks=pytest.mark.full),
    ],
)
def test_equation(options):
    """Kills: another projection's mu, a share of the wrong token, another head's decay, a bonus in the state, a norm
    over all heads or after the gate, a scale or shift of the norm by head."""
    config = RWKV5TimeMixConfig(d_model=D, **options)
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, x)

    assert_computes(mixer, x, expected, 2e-5)


def test_initial_values_by_hand():
    """Kills: values of another layer, channel or head. Channel 3 of 6 in layer 1 of 3: 1 - l/L = 2/3 and D = 1/2."""
    config = RWKV5TimeMixConfig(d_model=D, n_heads=2, layer_index=1, n_layers=3)
    mixer = RWKV5TimeMix(config, rngs=quick_rngs())
    key = 0.5 ** (2 / 3)
    for name, expected in (
        ("time_mix_key", key),
        ("time_mix_value", key + 0.15),
        ("time_mix_receptance", 0.5 ** (1 / 3)),
        ("time_mix_gate", 0.5 ** (1 / 3)),
        ("norm_scale", (2 / 3) ** 0.7),
        ("norm_bias", 0),
    ):
        np.testing.assert_allclose(getattr(mixer, name)[3], expected, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(mixer.time_decay[1, 0], -6 + 5 * 0.6**1.35, rtol=1e-6)
    expected = 0.5 * (1 - np.arange(6) / 5) + [0, 0.1, -0.1, 0, 0.1, -0.1]
    np.testing.assert_allclose(mixer.time_first[...].ravel(), expected, atol=1e-6)


def test_projections_of_the_release():
    """Kills: a projection that starts at 0 where another should, an orthogonal matrix of the wrong scale."""
    config = RWKV5TimeMixConfig(d_model=D, value_width=9, projections="release")
    mixer = RWKV5TimeMix(config, rngs=quick_rngs())
    assert not mixer.output.kernel[...].any()
    for layer in (mixer.key, mixer.value, mixer.receptance, mixer.gate):
        kernel = np.asarray(layer.kernel[...], np.float64)
        np.testing.assert_allclose(kernel @ kernel.T, 1.5 * np.eye(D), atol=1e-5)
