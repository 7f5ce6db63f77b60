"""Comba against its recurrence in float64, token by token."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.comba import CombaConfig
from tests.mixers.float64_truth import compare, delta_start, delta_token, sigmoid, softplus, unit


def truth(config):
    def update(p, x, h, q, k, v, s):
        own = h * config.n_heads // config.heads
        q, k, v = q[:, own], k[:, 0, own], v[:, 0, h]
        inner = sigmoid(p["inner_decay"][own]) if config.inner else 1.0
        q = q - p["correction"][own] * inner * k if config.correct else q
        feedback = unit(inner * k) if config.normalized_feedback else inner * unit(k)
        beta = sigmoid(x @ p["beta_proj.kernel"])[:, h]
        decay = jnp.exp(-jnp.exp(p["a_log"][h]) * softplus((x @ p["decay_proj.kernel"])[:, h] + p["dt_bias"][h]))
        missing = beta[:, None] * (v - jnp.einsum("bk,bkv->bv", feedback, s))
        s = decay[:, None, None] * s + unit(k)[:, :, None] * missing[:, None]
        return jnp.einsum("bk,bkv->bv", unit(q), s) / np.sqrt(config.head_key), s

    return delta_token(config, update, lambda p, x: sigmoid(x @ p["gate_proj.kernel"]))


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{"n_value_heads": 4, "normalized_feedback": False}, {}, {"inner": False, "correct": False}]
)
def test_equation(options):
    """Kills: a removal of the decayed state, queries corrected after their norm, a feedback of another head, an inner
    decay that the norm of p cancels, a SiLU gate."""
    config = CombaConfig(d_model=7, n_heads=2, key_width=6, value_width=8, n_taps=3, **options)
    compare(config, delta_start(config), truth(config))
