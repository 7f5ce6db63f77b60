"""Hyena's filter against its formula in float64, tap by tap; its window, initialisation and traits."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.hyena_filter import HyenaFilter, HyenaFilterConfig, decay_window
from jaxzoo.layers.variables import traits_of
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.refused import assert_refused

TAPS, CHANNELS = 9, 4


def filter_truth(config, p, *, channels, n_taps, prefix=""):
    """Taps `(n_taps, channels)`, each tap by itself; `p`: parameters in float64 by dotted path."""
    bands = (config.emb_dim - 1) // 2
    frequencies = [1e-4 + i * (bands - 1 - 1e-4) / max(bands - 1, 1) for i in range(bands)]
    rows = []
    for a in range(n_taps):
        time = a / (n_taps - 1)
        if config.position_learning_rate_scale:
            x = p[f"{prefix}positions"][a]
        else:
            turned = np.exp(-1j * 2 * np.pi * a / n_taps * np.array(frequencies))
            x = np.concatenate([[time], turned.real, turned.imag])
        w = p[f"{prefix}frequency"]
        x = np.sin(w * (x @ p[f"{prefix}kernel_in"] + p[f"{prefix}bias_in"]))
        for i in range(config.n_inner):
            x = np.sin(w * (x @ p[f"{prefix}kernel_inner"][i] + p[f"{prefix}bias_inner"][i]))
        taps = x @ p[f"{prefix}kernel_out"]
        for c in range(channels):
            share = c / max(channels - 1, 1)
            slow, fast = (np.log(config.decay_target) / pct for pct in (config.slow_decay, config.fast_decay))
            taps[c] *= np.exp(-time * abs(slow + share * (fast - slow))) + config.shift
        rows.append(taps / np.abs(taps).sum() if config.normalized else taps)
    return np.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {"width": 6},
        {
            "width": 5,
            "emb_dim": 5,
            "n_inner": 0,
            "position_learning_rate_scale": 0,
            "sine_frequency": 2.0,
            "normalized": True,
        },
        {
            "width": 7,
            "n_inner": 3,
            "sine_frequency": 1.0,
            "shift": 0.3,
            "fast_decay": 0.1,
            "slow_decay": 2.0,
            "decay_target": 0.2,
        },
    ],
)
def test_formula(options):
    """Kills: a frequency after the sine, one layer too many or too few, a bias of the last layer, a window of another
    channel, features that are not the parameters; shorter filters are the beginning of the whole one."""
    config = HyenaFilterConfig(**options)
    network, p = moved(lambda: HyenaFilter(config, CHANNELS, n_taps=TAPS, std=0.02, rngs=quick_rngs()))
    expected = filter_truth(config, p, channels=CHANNELS, n_taps=TAPS)
    for count in (TAPS, 4, 1):
        taps = jax.jit(network.__call__, static_argnums=0)(count)
        assert taps.shape == (count, CHANNELS)
        np.testing.assert_allclose(taps, expected[:count], rtol=0, atol=2e-5 * np.abs(expected).max())


def test_windows_fall_to_the_target_where_the_config_says():
    """Kills: fast and slow, or first and last channel, in each other's place; time that ends before 1."""
    config = HyenaFilterConfig(fast_decay=0.25, slow_decay=1.0, decay_target=1e-3)
    window = decay_window(config, 101, 5)
    np.testing.assert_allclose([window[100, 0], window[25, 4], window[0, 2]], [1e-3, 1e-3, 1], rtol=1e-5)


def test_initialisation():
    """Kills: matrices of one scale for both, biases of the released models that are not 0, features that are not the
    published ones, a frequency that ignores the config."""
    normal = HyenaFilter(HyenaFilterConfig(width=300), 200, n_taps=8, std=0.02, rngs=quick_rngs())
    for kernel in (normal.kernel_in, normal.kernel_inner, normal.kernel_out):
        np.testing.assert_allclose(np.asarray(kernel[...]).std(), 0.02, rtol=0.1)
    assert normal.kernel_inner.shape == (2, 300, 300)
    assert not np.abs(normal.bias_in[...]).any()
    assert not np.abs(normal.bias_inner[...]).any()
    np.testing.assert_array_equal(normal.frequency[...], np.full(300, 14.0))
    np.testing.assert_allclose(normal.positions[:, 0], np.arange(8) / 7, rtol=1e-6)
    uniform = HyenaFilter(HyenaFilterConfig(width=300, init="uniform"), 200, n_taps=8, std=0.02, rngs=quick_rngs())
    for array, fan_in in ((uniform.kernel_in, 3), (uniform.bias_in, 3), (uniform.kernel_out, 300)):
        np.testing.assert_allclose(np.asarray(array[...]).std(), (3 * fan_in) ** -0.5, rtol=0.1)
        assert np.abs(array[...]).max() <= fan_in**-0.5


def test_traits():
    """Kills: weight decay on the filter, one learning rate for network and positions, positions that are a parameter
    where they are fixed."""
    config = HyenaFilterConfig(learning_rate_scale=0.5, position_learning_rate_scale=0.25)
    network = nnx.eval_shape(lambda: HyenaFilter(config, 3, n_taps=4, std=0.02, rngs=quick_rngs()))
    traits = {path[0]: traits_of(leaf) for path, leaf in nnx.to_flat_state(nnx.state(network, nnx.Param))}
    assert len(traits) == 7
    assert not any(of.decay for of in traits.values())
    assert {name: of.learning_rate_scale for name, of in traits.items() if name == "positions"} == {"positions": 0.25}
    assert {of.learning_rate_scale for name, of in traits.items() if name != "positions"} == {0.5}
    still = HyenaFilterConfig(position_learning_rate_scale=0)
    fixed = nnx.eval_shape(lambda: HyenaFilter(still, 3, n_taps=4, std=0.02, rngs=quick_rngs()))
    assert not hasattr(fixed, "positions")


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"emb_dim": 4}, "emb_dim=4 must be odd and at least 3"),
        ({"width": 0}, "width=0 must be positive"),
        ({"n_inner": -1}, "n_inner=-1 must not be negative"),
        ({"sine_frequency": 0.0}, "sine_frequency=0.0 must be positive"),
        ({"decay_target": 1.0}, r"decay_target=1.0 must be in \(0, 1\)"),
        ({"slow_decay": 0.2}, "slow_decay=0.2 must be at least fast_decay=0.3"),
        ({"init": "zeros"}, "init='zeros' must be one of 'normal', 'uniform'"),
        ({"learning_rate_scale": 0}, "learning_rate_scale=0 must be positive"),
    ]
    assert_refused(HyenaFilterConfig, cases)
