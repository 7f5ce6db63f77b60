"""RetNet against its recurrence in float64, head by head; the plain layer of Zoology; every option."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.base import state_bytes
from jaxzoo.mixers.linear.ret_net import RetNet, RetNetConfig
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer, quick_rngs
from tests.mixers.refused import assert_refused

D, T = 12, 9


def truth(config, p, x):
    """Outputs `(b, t, d)`: rotation by complex numbers, one token after the other."""
    b, t, _ = x.shape
    width, values = D // config.n_heads, config.values // config.n_heads
    heads = []
    for h in range(config.n_heads):
        q, k = (x @ p[f"{name}.kernel"][:, h * width : (h + 1) * width] for name in ("q_proj", "k_proj"))
        v = x @ p["v_proj.kernel"][:, h * values : (h + 1) * values]
        if config.positions == "rotary":
            half = width // 2
            turn = np.exp(1j * np.arange(t)[:, None] * config.rotary_base ** (-np.arange(half) / half))[None]
            pairs = [(y[..., :half] + 1j * y[..., half:]) * turn for y in (q, k)]
            q, k = (np.concatenate([y.real, y.imag], axis=-1) for y in pairs)
        gamma = config.gamma or 1 - 2.0 ** (-5 - h)
        state, rows = np.zeros((b, width, values)), []
        for i in range(t):
            state = gamma * state + k[:, i, :, None] * v[:, i, None, :]
            o = np.einsum("bk,bkv->bv", q[:, i], state) / (np.sqrt(width) if config.scaled else 1)
            if config.group_norm == "layer":
                o = o - o.mean(-1, keepdims=True)
            if config.group_norm != "none":
                o = o / np.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps)
            rows.append(o)
        heads.append(np.stack(rows, axis=1))
    y = np.concatenate(heads, axis=-1)
    if config.gate:
        gate = x @ p["gate_proj.kernel"]
        y = y * gate / (1 + np.exp(-gate))
    return y @ p["out_proj.kernel"] if config.output_projection else y


@pytest.mark.parametrize(
    "options",
    [
        # The first is core: a norm would hide a wrong scale.
        {"n_heads": 2, "positions": "none", "group_norm": "none", "gate": False, "norm_eps": 0.1},
        {"n_heads": 3, "value_width": 15},
        {"n_heads": 2, "group_norm": "rms", "gamma": 0.7, "rotary_base": 10.0, "chunk_size": 3},
    ],
)
def test_equation(options):
    """Kills: another head's decay or columns, a rotation of values, a norm over all heads, a gate before the norm, an
    option that nothing reads."""
    config = RetNetConfig(d_model=D, **options)
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, x)

    assert_computes(mixer, x, expected, 2e-5)


def test_zoologys_plain_layer():
    """Kills: a norm, gate, scale or projection left over: App. H.2.3, Algorithm 6, line by line."""
    mixer, p = moved_mixer(RetNetConfig.plain(d_model=5, gamma=0.9))
    assert sorted(p) == ["k_proj.kernel", "q_proj.kernel", "v_proj.kernel"]
    u = np.random.default_rng(0).normal(size=(T, 5))
    a, c, v = (u @ p[f"{name}.kernel"] for name in ("k_proj", "q_proj", "v_proj"))
    z = np.outer(a[0], v[0])
    out = [c[0] @ z]
    for n in range(1, T):
        z = 0.9 * z + np.outer(a[n], v[n])
        out.append(c[n] @ z)
    y = jax.jit(mixer)(jnp.asarray(u, jnp.float32)[None])[0]
    np.testing.assert_allclose(y, np.stack(out), rtol=0, atol=1e-5 * np.abs(out).max())


@pytest.mark.slow
def test_the_chunk_changes_no_number():
    """Kills: Zoology's chunks of 8, 32 and 128 taken for other mixers."""
    x = jax.random.normal(jax.random.key(0), (1, 150, D))
    outputs = [
        RetNet(RetNetConfig(d_model=D, n_heads=2, chunk_size=size), rngs=quick_rngs())(x) for size in (8, 32, 128)
    ]
    for y in outputs[1:]:
        np.testing.assert_allclose(y, outputs[0], rtol=0, atol=1e-5 * np.abs(y).max())


def test_state_and_flops_by_hand():
    """Kills a state of the wrong heads: 2 heads of 6 x 10 float32 and a position; d = 12, values 20, chunks of 8."""
    config = RetNetConfig(d_model=12, n_heads=2, value_width=20, chunk_size=8)
    assert state_bytes(abstract_mixer(config)) == 4 * (2 * 6 * 10) + 4
    assert config.flops_per_token(100) == 2 * 12 * (24 + 60) + 2 * 8 * 32 + 4 * 6 * 20


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"n_heads": 5}, "d_model=12 must be divisible by n_heads=5"),
        ({"n_heads": 2, "value_width": 7}, "value_width=7 must be divisible by n_heads=2"),
        ({"n_heads": 4}, "positions='rotary' needs an even d_model / n_heads=3"),
        ({"gamma": 1.5}, r"gamma=1.5 must be in \(0, 1\]"),
        ({"group_norm": "batch"}, "group_norm='batch' must be one of 'layer', 'rms', 'none'"),
        ({"output_projection": False, "value_width": 24}, "output_projection=False needs value_width=24 to be d_model"),
        ({"chunk_size": 0}, "chunk_size=0 must be positive"),
    ]
    assert_refused(functools.partial(RetNetConfig, d_model=12), cases)
