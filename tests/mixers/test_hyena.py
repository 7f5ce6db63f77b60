"""Hyena against its definition in float64: both forms, several orders, shorter and longer than the filter, streamed."""

import numpy as np
import pytest

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.base import Inherited
from jaxzoo.mixers.conv.hyena import Hyena, HyenaConfig
from tests.layers.test_hyena_filter import filter_truth
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, TAPS = 5, 11
NETWORK = HyenaFilterConfig(emb_dim=5, width=6, sine_frequency=2.0)


def conv_truth(taps, x):
    """`y_i = sum_a taps_a x_{i-a}`, taps `(w, d)`, as a double loop."""
    y = np.zeros_like(x)
    for i in range(x.shape[1]):
        for a in range(min(i + 1, len(taps))):
            y[:, i] += taps[a] * x[:, i - a]
    return y


def truth(config, p, x):
    """The definition; column blocks of W_in by name, filters by their place in the network's channels."""
    u = x @ p["in_proj.kernel"] + p["in_proj.bias"]
    u = conv_truth(p["short_conv.taps"], u) + p["short_conv.bias"]
    blocks = [u[..., i * D : (i + 1) * D] for i in range(config.order + 1)]
    gates, z = blocks[:-1], blocks[-1]
    n_filters = config.order - (config.form == "release")
    taps = filter_truth(config.filter_network, p, channels=D * n_filters, n_taps=TAPS, prefix="filter.")
    if config.form == "release":
        z, gates = gates[0] * z, gates[1:]
    for n, gate in enumerate(gates):
        own = taps[:, [channel * n_filters + n for channel in range(D)]]
        z = gate * (conv_truth(own, z) + p["filter_bias"][:, n] * z)
    return z @ p["out_proj.kernel"] + p["out_proj.bias"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"form": "release"},
        {"order": 3, "n_short_taps": 4},
        {"order": 4, "form": "release", "n_short_taps": 1},
    ],
)
def test_equation(options):
    """Kills: gates in another order, a filter or bias of another order or channel, a long convolution too many, a skip
    after the gate, taps beyond the filter; for inputs shorter and longer than the filter."""
    config = HyenaConfig(d_model=D, n_taps=TAPS, filter_network=NETWORK, **options)
    mixer, p = moved_mixer(config)

    for t in (7, 2 * TAPS + 1):
        x = np.random.default_rng(t).normal(size=(2, t, D))
        expected = truth(config, p, x)
        assert_computes(mixer, x, expected, 2e-5)


@pytest.mark.full
def test_initialisation_and_traits():
    """Kills: a skip that starts at 0 or 1 and is decayed, an output projection of the wrong scale, a filter deaf to
    init_std, as many taps as somebody guessed."""
    config = HyenaConfig(d_model=128, order=3, init_std=0.03, out_init_std=0.01)
    mixer = Hyena(
        config.inherit(Inherited(d_model=128, max_length=40, init_std=0.5, out_init_std=0.5)), rngs=quick_rngs()
    )
    assert mixer.filter.positions.shape == (40, 3)
    bias = np.asarray(mixer.filter_bias[...])
    assert bias.shape == (128, 3)
    assert abs(bias.std() - 1) < 0.1
    assert not traits_of(mixer.filter_bias).decay
    for kernel, std in ((mixer.in_proj, 0.03), (mixer.out_proj, 0.01)):
        np.testing.assert_allclose(np.asarray(kernel.kernel[...]).std(), std, rtol=0.05)
        assert not np.abs(kernel.bias[...]).any()
    np.testing.assert_allclose(np.asarray(mixer.filter.kernel_inner[...]).std(), 0.03, rtol=0.05)
    taps = np.asarray(mixer.short_conv.taps[...])
    assert taps.shape == (3, 512)
    np.testing.assert_allclose(taps.std(), 1 / 3, rtol=0.05)
    assert np.abs(taps).max() <= 3**-0.5


def test_papers_formulas():
    """Kills a term of Zoology's Table 12 that is lost: its 158M model (18 layers of width 864, 50257 tokens) costs 2.41
    TFLOPs for 2048 tokens (Table 4), a multiply-add counted twice, and the backward pass twice the forward."""
    config = HyenaConfig(d_model=864, n_taps=2048)
    layer = config.papers_layer_flops(2048, mlp="gelu", mlp_width=1728)
    assert 6 * 2048 * (18 * layer + 2 * 50257 * 864) / 1e12 == pytest.approx(2.41, abs=0.005)
    assert config.papers_layer_flops(2048, mlp="gelu", mlp_width=4 * 864) is None
    assert config.papers_state_size(2048) == 864 * 2048
