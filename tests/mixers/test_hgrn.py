"""HGRN against its recurrence in float64, token by token; its errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.linear.hgrn import HGRNConfig, HGRNState
from tests.mixers.float64_truth import compare, sigmoid
from tests.mixers.moved import quick_rngs


def truth(config):
    def token(p, x, state):
        bound = p["lower_bound"]
        f = bound + (1 - bound) * sigmoid(x @ p["f_proj.kernel"])
        i, gate = x @ p["i_proj.kernel"], x @ p["gate_proj.kernel"]
        h = f * state.h + i * sigmoid(i) * (1 - f)
        y = h / jnp.sqrt((h**2).mean(-1, keepdims=True) + config.norm_eps) * p["norm.scale"]
        return (y * gate * sigmoid(gate)) @ p["out_proj.kernel"], HGRNState(h)

    return token


def test_equation():
    """Kills: inputs that are not scaled by 1 - f, a norm after the gate."""
    config = HGRNConfig(d_model=7, inner_width=9, layer_index=2, n_layers=5, norm_eps=1e-3)
    compare(config, lambda p, rows: HGRNState(jnp.zeros((rows, 9))), truth(config))


def test_bounds():
    """Kills the bound of another layer, and a bound that learns."""
    mixer = HGRNConfig(d_model=4, layer_index=2, n_layers=5).build(rngs=quick_rngs())
    np.testing.assert_allclose(mixer.lower_bound[...], [0.4] * 4)
    assert not isinstance(mixer.lower_bound, nnx.Param)


def test_config_errors():
    """Kills a layer beyond the last, whose gates would never forget."""
    with pytest.raises(ValueError, match="layer_index=3 must be below n_layers=3"):
        HGRNConfig(d_model=8, layer_index=3, n_layers=3)
