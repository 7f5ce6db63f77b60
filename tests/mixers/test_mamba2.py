"""Mamba-2 against its recurrence in float64, head by head; its initialisation, state and errors."""

import functools

import numpy as np
import pytest

import jaxzoo
from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.ssm.mamba2 import Mamba2, Mamba2Config
from jaxzoo.models import LanguageModel, LanguageModelConfig
from jaxzoo.ops.log_linear_attention import naive_log_linear_attention
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, conv, inputs, rms, silu, softplus
from tests.ops.shared import in_float64

D = 6


def truth(config, p, u):
    inner, n, heads, groups = 2 * D, config.d_state, config.heads, config.n_groups
    width, per_group = config.head_width, heads // groups
    projected = u @ p["in_proj.kernel"]
    projected = projected + p.get("in_proj.bias", 0)
    z, xbc = projected[..., :inner], projected[..., inner : 2 * inner + 2 * groups * n]
    rest = projected[..., 2 * inner + 2 * groups * n :]
    delta, levels = softplus(rest[..., :heads] + p["dt_bias"]), rest[..., heads:].reshape(2, T, heads, -1)
    delta = delta if config.dt_limit is None else np.clip(delta, *config.dt_limit)
    xbc = silu(conv(xbc, p["conv.taps"]) + p.get("conv.bias", 0))
    skip = p["skip"].reshape(heads, -1)
    y = np.zeros((2, T, heads, width))
    for h in range(heads):
        first = inner + h // per_group * n
        x, s = xbc[..., h * width : (h + 1) * width], np.zeros((2, n, width))
        b, c = xbc[..., first : first + n], xbc[..., first + groups * n : first + groups * n + n]
        if config.n_levels:
            du, scales = delta[:, :, h, None] * x, softplus(p["level_scale"][h] * levels[:, :, h])
            log_decay = -np.exp(p["a_log"][h]) * delta[..., h]
            head = (x[:, :, None] for x in (c, b, du))
            options = {"log_decay": log_decay[..., None], "scales": scales[:, :, None]}
            read = in_float64(functools.partial(naive_log_linear_attention, **options), *head)
            y[:, :, h] = read[:, :, 0] + skip[h] * x
            continue
        for i in range(T):
            kept = np.exp(-np.exp(p["a_log"][h]) * delta[:, i, h])
            s = kept[:, None, None] * s + delta[:, i, h, None, None] * b[:, i, :, None] * x[:, i, None]
            y[:, i, h] = np.einsum("bn,bnp->bp", c[:, i], s) + skip[h] * x[:, i]
    y = y.reshape(2, T, inner)
    if not config.normalize:
        return y * silu(z) @ p["out_proj.kernel"] + p["out_proj.bias"]
    norm = lambda y: rms(y.reshape(2, T, groups, -1), config.norm_eps).reshape(y.shape) * p["norm.scale"]  # noqa: E731
    y = norm(y) * silu(z) if config.norm_before_gate else norm(y * silu(z))
    return y @ p["out_proj.kernel"]


@pytest.mark.parametrize(
    "options",
    [
        {"d_state": 5, "head_dim": 3, "n_groups": 2, "n_taps": 3},
        {
            "d_state": 3,
            "head_dim": 4,
            "normalize": False,
            "dt_limit": (0.6, 0.8),
            "proj_bias": True,
            "conv_bias": False,
            "skip_per_channel": True,
        },
        pytest.param({"d_state": 3, "norm_before_gate": True}, marks=pytest.mark.full),
        {"d_state": 5, "head_dim": 3, "n_groups": 2, "n_levels": 6},
    ],
)
def test_equation(options):
    """Kills: B for C, another group's B, delta missing in the write, a skip of the wrong channels, a norm over all
    groups, a gate in the wrong order; in parallel, and streamed."""
    config = Mamba2Config(d_model=D, **options)
    mixer, p = moved(lambda: Mamba2(config, rngs=quick_rngs()))
    u = inputs(D)
    check(mixer, truth(config, p, u), u)


@pytest.mark.full
def test_initialisation():
    """Kills rates out of [1, 16], a skip that is not 1, and weight decay of what the public code does not decay."""
    mixer = Mamba2(Mamba2Config(d_model=300, head_dim=1), rngs=quick_rngs())
    rate = np.exp(np.asarray(mixer.a_log[...]))
    assert 1 <= rate.min() < 1.5
    assert 15.5 < rate.max() <= 16.001
    delta = softplus(np.asarray(mixer.dt_bias[...], np.float64))
    assert 0.00099 < delta.min() < delta.max() < 0.101
    np.testing.assert_array_equal(mixer.skip[...], np.ones(600))
    for variable in (mixer.a_log, mixer.dt_bias, mixer.skip, mixer.conv.bias, mixer.norm.scale):
        assert not traits_of(variable).decay


@pytest.mark.slow
def test_what_levels_show():
    """Kills: scores of another value than the token's, or none, where the past is read by levels."""
    config = LanguageModelConfig(
        pattern=(Mamba2Config(d_state=3, head_dim=4, n_levels=3),), d_model=D, n_layers=1, mlp="none", vocab_size=11
    )
    model = LanguageModel(config, rngs=quick_rngs())
    tokens = np.arange(18, dtype=np.int32).reshape(2, 9) % 11
    names = ("log_decay", "scores")
    _, seen = jaxzoo.capture(model, *(f"layers.0.mixer.{name}" for name in names))(tokens)
    log_decay, scores = (np.float64(seen[f"layers.0.mixer.{name}"]) for name in names)
    assert (log_decay < 0).all()
    assert np.triu(scores, 1).max() == 0
    assert (np.diagonal(scores, axis1=-2, axis2=-1) != 0).all()
