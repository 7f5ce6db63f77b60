"""Gated DeltaNet against its recurrence in float64, head by head; its initialisation."""

import numpy as np

from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.linear.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, delta_heads, inputs, rms, silu, softplus

D = 8


def test_equation():
    """Kills: a decay after the read, of another head or without its bias, value heads that are interleaved with the
    wrong keys, a gate before the norm; in parallel, and streamed."""
    config = GatedDeltaNetConfig(d_model=D, n_heads=2, n_value_heads=4, key_width=6, value_width=20, n_taps=3)
    mixer, p = moved(lambda: GatedDeltaNet(config, rngs=quick_rngs()))
    x = inputs(D)
    log_decay = -np.exp(p["a_log"]) * softplus(x @ p["decay_proj.kernel"] + p["dt_bias"])
    o = delta_heads(config, p, x, log_decay[..., None])
    y = (rms(o, config.norm_eps) * p["norm.scale"]).reshape(2, T, config.values)
    check(mixer, (y * silu(x @ p["gate_proj.kernel"])) @ p["out_proj.kernel"], x)


def test_initialisation():
    """Kills decays out of the range of Mamba-2, and weight decay of what the public code does not decay."""
    mixer = GatedDeltaNet(GatedDeltaNetConfig(d_model=500, n_heads=500), rngs=quick_rngs())
    rate, delta = np.exp(np.asarray(mixer.a_log[...])), softplus(np.asarray(mixer.dt_bias[...], np.float64))
    assert rate.min() > 0
    assert 15.5 < rate.max() <= 16
    np.testing.assert_allclose(rate.mean(), 8, atol=0.6)
    assert delta.min() > 0.00099
    assert delta.max() < 0.101
    np.testing.assert_allclose(np.median(np.log10(delta)), -2, atol=0.1)
    for variable in (mixer.a_log, mixer.dt_bias, mixer.norm.scale):
        assert not traits_of(variable).decay
    assert traits_of(mixer.conv.taps).decay
