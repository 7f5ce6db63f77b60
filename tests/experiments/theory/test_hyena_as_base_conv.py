"""Zoology, Prop. H.12: Hyena as BaseConv and back. Kills: gates or filters in another order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory.hyena_as_base_conv import to_base_conv, to_hyena
from experiments.theory.parameters import apply
from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import BaseConvConfig, HyenaConfig
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.mixers.conv.hyena import Hyena
from tests.mixers.moved import moved, quick_rngs

D, TAPS = 4, 11
NETWORK = HyenaFilterConfig(emb_dim=5, width=6, sine_frequency=2.0)


def draw(t):
    return jnp.asarray(np.random.default_rng(t).normal(size=(2, t, D)), jnp.float32)


def assert_equal(first, second, *lengths):
    """Two functions of a sequence agree, within the rounding of float32."""
    for t in lengths:
        y, expected = jax.jit(lambda u: (first(u), second(u)))(draw(t))
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"order": 3, "n_short_taps": 4}, marks=pytest.mark.full),
        pytest.param({"order": 4, "form": "release", "n_short_taps": 1}, marks=pytest.mark.full),
    ],
)
def test_hyena_is_base_conv(options):
    """Kills: gates or filters in another order, a filter without its bias, a forgotten short convolution or bias, a
    first long convolution of the release; with L + 3 layers of width (L + 1) d, at most the 5 L of the proposition."""
    hyena, _ = moved(
        lambda: Hyena(HyenaConfig(d_model=D, n_taps=TAPS, filter_network=NETWORK, **options), rngs=quick_rngs())
    )
    layers = to_base_conv(hyena)
    order = hyena.config.order
    assert all(isinstance(layer, BaseConv) and layer.config.form == "paper" for layer in layers)
    assert [layer.config.d_model for layer in layers] == [(order + 1) * D] * (order + 3)
    assert len(layers) <= 5 * order
    assert_equal(lambda u: apply(layers, u), hyena, 2 * TAPS + 1, *(() if options else (3,)))


@pytest.mark.parametrize("n_taps", [8, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3, 40))])
def test_base_conv_is_hyena(n_taps):
    """Kills: a filter that the network's window bends, which falls below 1e-6, taps off by one, a gate without its
    bias."""
    filter = "short" if n_taps == 3 else "long"
    base_conv, _ = moved(lambda: BaseConv(BaseConvConfig(d_model=D, filter=filter, n_taps=n_taps), rngs=quick_rngs()))
    base_conv.conv_bias[...] = jnp.zeros(D)
    hyena = to_hyena(base_conv)
    assert isinstance(hyena, Hyena)
    assert_equal(hyena, base_conv, 3, 50)
