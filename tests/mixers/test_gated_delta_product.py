"""Gated DeltaProduct against its updates in float64, one after the other."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.gated_delta_product import GatedDeltaProductConfig
from tests.mixers.float64_truth import compare, delta_start, delta_token, sigmoid, softplus, unit


def truth(config):
    def update(p, x, h, q, k, v, s):
        own = h * config.n_heads // config.heads
        beta = (2 if config.negative else 1) * sigmoid(x @ p["beta_proj.kernel"])
        if config.forget:
            decay = jnp.exp(-jnp.exp(p["a_log"][h]) * softplus((x @ p["decay_proj.kernel"])[:, h] + p["dt_bias"][h]))
            s = decay[:, None, None] * s
        for j in range(config.n_updates):
            key = unit(k[:, j, own])
            missing = v[:, j, h] - jnp.einsum("bk,bkv->bv", key, s)
            strength = beta[:, j * config.heads + h, None, None]
            s = s + strength * key[:, :, None] * missing[:, None]
        return jnp.einsum("bk,bkv->bv", unit(q[:, own]), s) / np.sqrt(config.head_key), s

    def gate(p, x):
        z = x @ p["gate_proj.kernel"]
        return z * sigmoid(z)

    return delta_token(config, update, gate)


@pytest.mark.full
@pytest.mark.parametrize("options", [{"n_updates": 3, "n_value_heads": 4}, {"forget": False, "negative": False}])
def test_equation(options):
    """Kills: a decay per update, updates that all read the state before the token, an output before the last one,
    columns by head before update, a document that begins within a token."""
    config = GatedDeltaProductConfig(d_model=7, n_heads=2, key_width=6, value_width=8, n_taps=3, **options)
    compare(config, delta_start(config), truth(config))
