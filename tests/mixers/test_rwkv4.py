"""RWKV-4's two mixers against their equations in float64, token by token; initial values by hand."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.rwkv4 import RWKV4TimeMix, RWKV4TimeMixConfig
from jaxzoo.mixers.linear.rwkv4_channel_mix import RWKV4ChannelMix, RWKV4ChannelMixConfig
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 6, 9


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def shifted(p, name, x):
    """The token shift with the mu of one projection, and that projection."""
    before = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], axis=1)
    mu = p[f"time_mix_{name}"]
    return (mu * x + (1 - mu) * before) @ p[f"{name}.kernel"]


def time_mix(p, x):
    r, k, v = (shifted(p, name, x) for name in ("receptance", "key", "value"))
    w, u, rows = np.exp(p["time_decay"]), p["time_first"], []
    for t in range(x.shape[1]):
        weights = [np.exp(-(t - 1 - i) * w + k[:, i]) for i in range(t)] + [np.exp(u + k[:, t])]
        rows.append(sum(weight * v[:, i] for i, weight in enumerate(weights)) / sum(weights))
    return (sigmoid(r) * np.stack(rows, axis=1)) @ p["output.kernel"]


def channel_mix(p, x):
    hidden = np.maximum(shifted(p, "key", x), 0) ** 2
    return sigmoid(shifted(p, "receptance", x)) * (hidden @ p["value.kernel"])


@pytest.mark.parametrize(
    ("config", "truth"),
    [
        (RWKV4TimeMixConfig(d_model=D, value_width=10, layer_index=2, n_layers=4), time_mix),
        pytest.param(RWKV4TimeMixConfig(d_model=D), time_mix, marks=pytest.mark.full),
        (RWKV4ChannelMixConfig(d_model=D, hidden_width=11), channel_mix),
        pytest.param(RWKV4ChannelMixConfig(d_model=D), channel_mix, marks=pytest.mark.full),
    ],
)
def test_equation(config, truth):
    """Kills: another projection's mu, a share of the wrong token, a bonus or a decay in the wrong place, a gate after
    the output, a ReLU that is not squared."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(p, x)

    assert_computes(mixer, x, expected)


def test_initial_values_by_hand():
    """Kills: values of another layer or channel. Channel 3 of 6 in layer 1 of 3: 1 - l/L = 2/3 and D = 1/2."""
    place = {"layer_index": 1, "n_layers": 3}
    time = RWKV4TimeMix(RWKV4TimeMixConfig(d_model=D, **place), rngs=quick_rngs())
    channel = RWKV4ChannelMix(RWKV4ChannelMixConfig(d_model=D, **place), rngs=quick_rngs())
    key = 0.5 ** (2 / 3)
    for mixer, name, expected in (
        (time, "time_mix_key", key),
        (time, "time_mix_value", key + 0.15),
        (time, "time_mix_receptance", 0.5 ** (1 / 3)),
        (time, "time_decay", -5 + 8 * 0.6**1.35),
        (time, "time_first", np.log(0.3)),
        (channel, "time_mix_key", key),
        (channel, "time_mix_receptance", key),
    ):
        np.testing.assert_allclose(getattr(mixer, name)[3], expected, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(time.time_first[...] - np.log(0.3), [0, 0.5, -0.5, 0, 0.5, -0.5], atol=1e-6)
    first, last = (
        RWKV4TimeMix(RWKV4TimeMixConfig(d_model=D, layer_index=i, n_layers=3), rngs=quick_rngs()) for i in (0, 2)
    )
    np.testing.assert_allclose(first.time_decay[...], -5 + 8 * (np.arange(6) / 5) ** 0.7, rtol=1e-6)
    np.testing.assert_allclose(last.time_decay[...], -5 + 8 * (np.arange(6) / 5) ** 2, rtol=1e-6)
    np.testing.assert_allclose(first.time_mix_value[...], np.arange(6) / 6, rtol=1e-6)


def test_projections_of_the_release():
    """Kills: a projection that starts at 0 where another should, an orthogonal matrix of the wrong scale."""
    options = {"d_model": D, "projections": "release"}
    time = RWKV4TimeMix(RWKV4TimeMixConfig(**options), rngs=quick_rngs())
    channel = RWKV4ChannelMix(RWKV4ChannelMixConfig(**options), rngs=quick_rngs())
    for layer in (time.key, time.receptance, time.output, channel.receptance, channel.value):
        assert not layer.kernel[...].any()
    for layer, square in ((time.value, 1), (channel.key, 4)):
        kernel = np.asarray(layer.kernel[...], np.float64)
        np.testing.assert_allclose(kernel @ kernel.T, square * np.eye(D), atol=1e-5)
    normal = RWKV4TimeMix(RWKV4TimeMixConfig(d_model=D), rngs=quick_rngs())
    assert 0.01 < np.std(normal.key.kernel[...]) < 0.03
