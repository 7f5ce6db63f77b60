"""Gated DeltaNet-2 against its recurrence in float64, token by token."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.gated_delta_net2 import GatedDeltaNet2Config
from tests.mixers.float64_truth import compare, delta_start, delta_token, sigmoid, softplus, unit


def truth(config):
    def update(p, x, h, q, k, v, s):
        own = h * config.n_heads // config.heads
        channels = slice(own * config.head_key, (own + 1) * config.head_key)
        columns = slice(h * config.head_value, (h + 1) * config.head_value)
        step = softplus(x @ p["decay.down.kernel"] @ p["decay.up.kernel"] + p["dt_bias"])[:, channels]
        s = jnp.exp(-jnp.exp(p["a_log"][own]) * step)[:, :, None] * s
        erase = (2 if config.negative else 1) * sigmoid(x @ p["beta_proj.kernel"])[:, channels]
        write = sigmoid(x @ p["write_proj.kernel"])[:, columns]
        key = unit(k[:, 0, own])
        s = s - key[:, :, None] * jnp.einsum("bk,bkv->bv", erase * key, s)[:, None]
        s = s + key[:, :, None] * (write * v[:, 0, h])[:, None]
        return jnp.einsum("bk,bkv->bv", unit(q[:, own]), s) / np.sqrt(config.head_key), s

    def gate(p, x):
        return sigmoid(x @ p["gate.down.kernel"] @ p["gate.up.kernel"] + p["gate.up.bias"])

    return delta_token(config, update, gate)


@pytest.mark.full
def test_equation():
    """Kills: a read before the decay, an erase gate on the written key, gates of another head, a rate per value head, a
    write gate that is doubled with the erase gate."""
    config = GatedDeltaNet2Config.tiny()
    compare(config, delta_start(config), truth(config))
