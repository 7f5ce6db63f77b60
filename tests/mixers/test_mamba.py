"""Mamba against its equations in float64, one token after the other; its initialisation; its state."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.ssm.mamba import Mamba, MambaConfig
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 6, 9


def silu(x):
    return x / (1 + np.exp(-x))


def truth(config, p, u):
    """Outputs `(b, t, d)`: convolution, selection, recurrence and gate of one token after the other."""
    b, t, _ = u.shape
    inner, n, rank = config.expand * D, config.d_state, config.dt_rank or -(-D // 16)
    xz = u @ p["in_proj.kernel"]
    x, z = xz[..., :inner], xz[..., inner:]
    a, h, rows = -np.exp(p["a_log"]), np.zeros((b, inner, n)), []
    for i in range(t):
        past = sum(p["taps"][j] * x[:, i - j] for j in range(config.n_taps) if j <= i)
        x_i = silu(past + p["conv_bias"])
        selected = x_i @ p["x_proj.kernel"]
        r, b_i, c_i = selected[:, :rank], selected[:, rank : rank + n], selected[:, rank + n :]
        delta = np.log1p(np.exp(r @ p["dt_proj.kernel"] + p["dt_bias"]))
        y = np.zeros((b, inner))
        for channel in range(inner):
            for k in range(n):
                kept = np.exp(delta[:, channel] * a[channel, k])
                write = delta[:, channel] if config.discretization == "release" else (kept - 1) / a[channel, k]
                h[:, channel, k] = kept * h[:, channel, k] + write * b_i[:, k] * x_i[:, channel]
                y[:, channel] += c_i[:, k] * h[:, channel, k]
        rows.append((y + p["skip"] * x_i) * silu(z[:, i]))
    return np.stack(rows, axis=1) @ p["out_proj.kernel"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"d_state": 4}, marks=pytest.mark.full),
        {"d_state": 3, "expand": 3, "n_taps": 2, "dt_rank": 4},
        {"d_state": 2, "expand": 1, "n_taps": 3, "dt_rank": 2, "discretization": "zoh"},
    ],
)
def test_equation(options):
    """Kills: x for z, B for C, a bias before the wrong nonlinearity, a skip of the wrong branch, a gate before the
    recurrence, B by the other rule, an option that nothing reads."""
    config = MambaConfig(d_model=D, **options)
    mixer, p = moved_mixer(config)
    u = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, u)

    assert_computes(mixer, u, expected, 2e-5)


@pytest.mark.slow
def test_initialisation():
    """Kills a delta out of its range, or uniform rather than log-uniform; an A that is not -1 .. -N; a projection of
    another scale; decay of what the public code does not decay. 1000 deltas in [1e-5, 0.1], floored at 1e-4: a quarter
    of them at the floor, the median of the rest at 10^-2.5."""
    config = MambaConfig(d_model=500, d_state=5, dt_min=1e-5, dt_floor=1e-4, out_init_std=0.01)
    mixer = Mamba(config, rngs=nnx.Rngs(0))
    delta = np.log1p(np.exp(np.asarray(mixer.dt_bias[...], np.float64)))
    assert delta.min() >= 0.999e-4
    assert delta.max() <= 0.1001
    floored = delta < 1.01e-4
    np.testing.assert_allclose(floored.mean(), 0.25, atol=0.05)
    np.testing.assert_allclose(np.median(np.log10(delta[~floored])), -2.5, atol=0.15)
    np.testing.assert_allclose(-np.exp(mixer.a_log[...]), np.tile(-np.arange(1.0, 6), (1000, 1)), rtol=1e-6)
    np.testing.assert_array_equal(mixer.skip[...], np.ones(1000))
    kernel = np.abs(np.asarray(mixer.dt_proj.kernel[...]))
    assert 0.99 * 32**-0.5 < kernel.max() <= 32**-0.5  # rank 500 / 16, rounded up
    taps = np.abs(np.asarray(mixer.taps[...]))
    assert 0.499 < taps.max() <= 0.5
    for layer, bound in ((mixer.in_proj, 500**-0.5), (mixer.x_proj, 1000**-0.5), (mixer.out_proj, 0.5 * 1000**-0.5)):
        kernel = np.abs(np.asarray(layer.kernel[...]))
        assert 0.99 * bound < kernel.max() <= bound
    normal = Mamba(dataclasses.replace(config, projection_init="normal"), rngs=quick_rngs())
    for layer, std in ((normal.in_proj, 0.02), (normal.x_proj, 0.02), (normal.out_proj, 0.01)):
        np.testing.assert_allclose(np.std(np.asarray(layer.kernel[...])), std, rtol=0.05)
    for name in ("a_log", "skip", "dt_bias", "conv_bias"):
        assert not traits_of(getattr(mixer, name)).decay, name
    assert traits_of(mixer.taps).decay
    assert traits_of(mixer.dt_proj.kernel).decay
