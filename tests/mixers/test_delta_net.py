"""DeltaNet against its recurrence in float64, head by head; its state and errors."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.delta_net import DeltaNet, DeltaNetConfig
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, delta_heads, inputs, rms, silu

D = 8


@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_width": 6, "value_width": 10, "n_taps": 3, "gate": True, "negative": True},
        {"n_heads": 2, "conv_bias": True, "qk_activation": "elu", "qk_norm": "sum"},
        pytest.param({"qk_activation": "relu"}, marks=pytest.mark.full),
        pytest.param({}, marks=pytest.mark.full),
    ],
)
def test_equation(options):
    """Kills: keys that are not normalized, a read after the write, beta of another range, taps in reverse, another
    head's channels, an option that nothing reads; in parallel, and streamed."""
    config = DeltaNetConfig(d_model=D, **options)
    mixer, p = moved(lambda: DeltaNet(config, rngs=quick_rngs()))
    x = inputs(D)
    o = delta_heads(config, p, x, np.zeros((2, T, config.heads, 1)))
    y = (rms(o, config.norm_eps) * p["norm.scale"]).reshape(2, T, config.values)
    gate = silu(x @ p["gate_proj.kernel"]) if config.gate else 1
    check(mixer, (y * gate) @ p["out_proj.kernel"], x)
