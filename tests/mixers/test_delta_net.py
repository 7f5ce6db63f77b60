"""DeltaNet against its recurrence in float64, head by head; its state and errors."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.base import state_bytes
from jaxzoo.mixers.linear.delta_net import DeltaNet, DeltaNetConfig
from tests.mixers.moved import abstract_mixer, moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, delta_heads, inputs, rms, silu
from tests.mixers.refused import assert_refused

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


def test_state_and_flops_by_hand():
    """Kills a state without the convolution, or of the wrong heads: d = 8, 2 heads of keys of 3 and values of 5."""
    config = DeltaNetConfig(d_model=D, n_heads=2, key_width=6, value_width=10, n_taps=3)
    mixer = abstract_mixer(config)
    assert state_bytes(mixer) == 4 * (2 * 3 * 5 + 2 * 22)
    assert state_bytes(mixer, dtype=jnp.bfloat16) == 4 * 2 * 3 * 5 + 2 * 2 * 22
    projections = 2 * 8 * (6 + 6 + 10 + 2 + 10)
    assert config.flops_per_token(10) == projections + 22 * 2 * 3 + 2 * 10 * (2 * 6 + 2 * 10) + 6 * 3 * 10


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"n_heads": 3}, "key_width=None gives 8 channels, which must be a multiple of 3 heads"),
        ({"n_heads": 2, "value_width": 7}, "value_width=7 gives 7 channels"),
        ({"n_heads": 2, "n_value_heads": 3}, "n_value_heads=3 must be a multiple of n_heads=2"),
        ({"n_taps": 0}, "n_taps=0 must be positive"),
    ]
    assert_refused(functools.partial(DeltaNetConfig, d_model=D), cases)
