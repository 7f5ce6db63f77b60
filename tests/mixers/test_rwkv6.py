"""RWKV-6's time mixing against its equations in float64, head by head; its initialisation."""

import numpy as np

from jaxzoo.mixers.linear.rwkv6 import RWKV6TimeMix, RWKV6TimeMixConfig
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import T, check, inputs, silu

D = 6


def truth(config, p, x):
    before = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], axis=1) - x
    z = x + before * p["shift_mean"]
    down = p["shift_down"].reshape(D, 5, config.shift_rank)
    shifted = [x + before * (p["shifts"][j] + np.tanh(z @ down[:, j]) @ p["shift_up"][j]) for j in range(5)]
    w, k, v, r, g = shifted
    r, k, v = r @ p["receptance.kernel"], k @ p["key.kernel"], v @ p["value.kernel"]
    low = np.tanh(w @ p["decay_down"]) @ p["decay_up"]
    width, v_width, heads = config.head_key, config.values // config.n_heads, []
    for h in range(config.n_heads):
        own, columns = slice(h * width, (h + 1) * width), slice(h * v_width, (h + 1) * v_width)
        decay = np.exp(-np.exp(p["time_decay"][h] + low[..., own]))
        s, rows = np.zeros((2, width, v_width)), []
        for i in range(T):
            write = k[:, i, own, None] * v[:, i, None, columns]
            rows.append(np.einsum("bk,bkv->bv", r[:, i, own], s + p["time_first"][h][None, :, None] * write))
            s = decay[:, i, :, None] * s + write
        o = np.stack(rows, axis=1)
        o = o - o.mean(-1, keepdims=True)
        heads.append(o / np.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps))
    y = np.concatenate(heads, axis=-1) * p["norm_scale"] + p["norm_bias"]
    return (y * silu(g @ p["gate.kernel"])) @ p["output.kernel"]


def test_equation():
    """Kills: the shift of another projection, a low-rank map of the wrong input, a decay before the read, a bonus that
    is written, another head's columns; in parallel, and streamed."""
    config = RWKV6TimeMixConfig(d_model=D, n_heads=2, value_width=8, key_width=4, shift_rank=2, decay_rank=3)
    mixer, p = moved(lambda: RWKV6TimeMix(config, rngs=quick_rngs()))
    x = inputs(D)
    check(mixer, truth(config, p, x), x)


def test_initialisation():
    """Kills a share of the token for one of the token before, and a depth that nothing reads."""
    config = RWKV6TimeMixConfig(d_model=8, layer_index=1, n_layers=3)
    mixer = RWKV6TimeMix(config, rngs=quick_rngs())
    share = 1 - (np.arange(8) / 8) ** (2 / 3)
    half = 1 - (np.arange(8) / 8) ** (1 / 3)
    expected = [share, share, share - 0.3 * 0.5, half, half]
    np.testing.assert_allclose(mixer.shifts[...], expected, atol=1e-6)
    np.testing.assert_allclose(mixer.shift_mean[...], share, atol=1e-6)
    np.testing.assert_array_equal(mixer.shift_down[...], 0)
    assert 0 < np.abs(np.asarray(mixer.shift_up[...])).max() <= 0.01
