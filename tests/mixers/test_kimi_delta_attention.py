"""Kimi Delta Attention against its recurrence in float64, head by head; its errors."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.kimi_delta_attention import KimiDeltaAttention, KimiDeltaAttentionConfig
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, delta_heads, inputs, rms, sigmoid, softplus

D = 8


@pytest.mark.parametrize(
    "options", [{"n_value_heads": 4, "value_width": 20}, {"n_heads": 2, "value_width": 10, "lower_bound": -5.0}]
)
def test_equation(options):
    """Kills: a decay per head instead of per channel, a rate A or decays of another value head, a bound outside of the
    sigmoid, a SiLU gate, a missing bias; in parallel, and streamed."""
    config = KimiDeltaAttentionConfig(**{"d_model": D, "n_heads": 2, "key_width": 6, "n_taps": 3, "rank": 2, **options})
    mixer, p = moved(lambda: KimiDeltaAttention(config, rngs=quick_rngs()))
    x = inputs(D)
    logits = (x @ p["decay.down.kernel"] @ p["decay.up.kernel"] + p["dt_bias"]).reshape(2, T, config.heads, 3)
    rate, bound = np.exp(p["a_log"])[:, None], config.lower_bound
    log_decay = -rate * softplus(logits) if bound is None else bound * sigmoid(rate * logits)
    o = delta_heads(config, p, x, log_decay)
    y = (rms(o, config.norm_eps) * p["norm.scale"]).reshape(2, T, config.values)
    gate = sigmoid(x @ p["gate.down.kernel"] @ p["gate.up.kernel"] + p["gate.up.bias"])
    check(mixer, (y * gate) @ p["out_proj.kernel"], x)
