"""RetNet against its recurrence in float64, head by head; the plain layer of Zoology; every option."""

import numpy as np
import pytest

from jaxzoo.mixers.linear.ret_net import RetNetConfig
from tests.mixers.moved import assert_computes, moved_mixer

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
    "config",
    [
        # The first is core: a norm would hide a wrong scale.
        RetNetConfig(d_model=D, n_heads=2, positions="none", group_norm="none", gate=False, norm_eps=0.1),
        RetNetConfig(d_model=D, n_heads=3, value_width=15),
        RetNetConfig(d_model=D, n_heads=2, group_norm="rms", gamma=0.7, rotary_base=10.0, chunk_size=3),
        RetNetConfig.plain(d_model=D, gamma=0.9),
    ],
    ids=("without norm", "layer norm", "RMS norm", "plain layer of Zoology"),
)
def test_equation(config):
    """Kills: another head's decay or columns, a rotation of values, a norm over all heads, a gate before the norm, an
    option that nothing reads."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, x)

    assert_computes(mixer, x, expected, 2e-5)
