"""Kimi Delta Attention against its recurrence in float64, head by head; its errors."""

import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.linear.kimi_delta_attention import KimiDeltaAttention, KimiDeltaAttentionConfig
from tests.mixers.moved import moved
from tests.mixers.recurrent_truth import T, check, delta_heads, inputs, rms, sigmoid, softplus

D = 8


def test_equation():
    """Kills: a decay per head instead of per channel, a rate A of another head, a SiLU gate, a missing bias; in
    parallel, and streamed."""
    config = KimiDeltaAttentionConfig(d_model=D, n_heads=2, key_width=6, value_width=10, n_taps=3, rank=2)
    mixer, p = moved(KimiDeltaAttention(config, rngs=nnx.Rngs(0)))
    x = inputs(D)
    step = softplus(x @ p["decay.down.kernel"] @ p["decay.up.kernel"] + p["dt_bias"])
    log_decay = -np.exp(p["a_log"])[:, None] * step.reshape(2, T, 2, 3)
    o = delta_heads(config, p, x, log_decay)
    y = (rms(o, config.norm_eps) * p["norm.scale"]).reshape(2, T, config.values)
    gate = sigmoid(x @ p["gate.down.kernel"] @ p["gate.up.kernel"] + p["gate.up.bias"])
    check(mixer, (y * gate) @ p["out_proj.kernel"], x)


def test_config_errors():
    """Kills grouped values, whose decays would be those of another head."""
    with pytest.raises(ValueError, match="n_value_heads=4 must be n_heads=2"):
        KimiDeltaAttentionConfig(d_model=D, n_heads=2, n_value_heads=4)
