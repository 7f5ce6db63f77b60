"""Gated linear attention against its recurrence in float64, head by head."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.gated_linear_attention import GatedLinearAttentionConfig
from tests.mixers.moved import assert_computes, moved_mixer

D, T = 8, 9


def truth(config, p, x):
    """Outputs `(b, t, d)`, one token after the other."""
    b, t, _ = x.shape
    keys, values = config.keys // config.n_heads, config.values // config.n_heads
    logits = x @ p["decay_down.kernel"] @ p["decay_up.kernel"] + p["decay_up.bias"]
    alpha = (1 / (1 + np.exp(-logits))) ** (1 / config.decay_temperature)
    heads = []
    for h in range(config.n_heads):
        own, v_own = slice(h * keys, (h + 1) * keys), slice(h * values, (h + 1) * values)
        q, k, v = x @ p["q_proj.kernel"][:, own], x @ p["k_proj.kernel"][:, own], x @ p["v_proj.kernel"][:, v_own]
        state, rows = np.zeros((b, keys, values)), []
        for i in range(t):
            state = alpha[:, i, own, None] * state + k[:, i, :, None] * v[:, i, None, :]
            o = np.einsum("bk,bkv->bv", q[:, i], state) / np.sqrt(keys)
            o = o - o.mean(-1, keepdims=True) if config.head_norm == "layer" else o
            rows.append(o / np.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps) * p["norm_scale"])
        heads.append(np.stack(rows, axis=1))
    gate = x @ p["gate_proj.kernel"] + p.get("gate_proj.bias", 0)
    return (np.concatenate(heads, axis=-1) * gate / (1 + np.exp(-gate))) @ p["out_proj.kernel"]


@pytest.mark.parametrize(
    "config",
    [
        GatedLinearAttentionConfig(d_model=D, n_heads=2, decay_rank=3),
        GatedLinearAttentionConfig.release(
            d_model=D, n_heads=2, key_width=6, value_width=10, decay_rank=2, decay_temperature=2.0, norm_eps=0.1
        ),
    ],
)
def test_equation(config):
    """Kills: another head's decays or columns, a decay of the values, a temperature or bias left out, a norm over all
    heads, an option that nothing reads."""
    mixer, p = moved_mixer(config)
    assert ("gate_proj.bias" in p) == config.gate_bias
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, x)

    assert_computes(mixer, x, expected, 2e-5)
