"""Multi-head Hyena against its definition in float64, product by product; heads of one channel are Hyena."""

import numpy as np
import pytest

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.conv.multi_head_hyena import MultiHeadHyena, MultiHeadHyenaConfig
from tests.layers.test_hyena_filter import filter_truth
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs
from tests.mixers.test_hyena import conv_truth

D, TAPS = 6, 11
NETWORK = HyenaFilterConfig(emb_dim=5, width=6, sine_frequency=2.0)


def truth(config, p, x):
    """Every product of a head is convolved by itself, as a tensor of `width^2` channels."""
    u = x @ p["in_proj.kernel"] + p["in_proj.bias"]
    u = conv_truth(p["short_conv.taps"], u) + p["short_conv.bias"]
    taps = filter_truth(config.filter_network, p, channels=config.n_heads, n_taps=TAPS, prefix="filter.")
    width, heads = D // config.n_heads, []
    for h in range(config.n_heads):
        k, q, v = (u[..., part * D + h * width : part * D + (h + 1) * width] for part in range(3))
        products = (k[..., :, None] * v[..., None, :]).reshape(*x.shape[:2], width**2)
        read = conv_truth(np.repeat(taps[:, h : h + 1], width**2, axis=1), products) + p["filter_bias"][h] * products
        heads.append(np.einsum("btk,btkv->btv", q, read.reshape(*x.shape[:2], width, width)))
    return np.concatenate(heads, axis=-1) @ p["out_proj.kernel"] + p["out_proj.bias"]


@pytest.mark.parametrize(
    "options", [{"n_heads": 2, "n_short_taps": 4}, pytest.param({"n_heads": 1}, marks=pytest.mark.full)]
)
def test_equation(options):
    """Kills: keys for values, another head's filter, bias or columns, a query that reads the value axis; for inputs
    shorter and longer than the filter."""
    config = MultiHeadHyenaConfig(d_model=D, n_taps=TAPS, filter_network=NETWORK, **options)
    mixer, p = moved_mixer(config)

    for t in (7, 2 * TAPS + 1):
        x = np.random.default_rng(t).normal(size=(2, t, D))
        expected = truth(config, p, x)
        assert_computes(mixer, x, expected, 2e-5)


@pytest.mark.full
def test_bias_of_each_head():
    """Kills a skip for each channel, or one that is decayed."""
    mixer = MultiHeadHyena(MultiHeadHyenaConfig(d_model=400, n_heads=200, n_taps=8), rngs=quick_rngs())
    bias = np.asarray(mixer.filter_bias[...])
    assert bias.shape == (200,)
    assert abs(bias.std() - 1) < 0.15
    assert not traits_of(mixer.filter_bias).decay
    assert mixer.filter.kernel_out.shape == (64, 200)
