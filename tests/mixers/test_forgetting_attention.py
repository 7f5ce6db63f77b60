"""Forgetting attention against a loop over tokens in float64, head by head."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.attention.forgetting_attention import ForgettingAttentionConfig
from jaxzoo.ops.forget_bias import forget_bias
from tests.mixers.moved import assert_gradients, moved_mixer
from tests.mixers.recurrent_truth import rms, sigmoid, softmax, softplus

D, T = 10, 11
IDS = np.repeat([[4, 1, 7], [2, 9, 3]], [5, 1, 5], axis=1)


def turn(y, i, base=10000.0):
    """Rotates the halves of the first half of the channels."""
    n = y.shape[-1] // 4
    angle = i * base ** (-np.arange(n) / n)
    a, b = y[..., :n], y[..., n : 2 * n]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, y[..., 2 * n :]], axis=-1)


def truth(config):
    """Outputs `(b, t, d)`: every token meets each one before it."""
    width, group = config.head_width, config.n_heads // config.kv_heads

    def project(p, name, x):
        return x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0)

    def run(p, x, ids):
        heads = []
        for h in range(config.n_heads):
            own, kv = (slice(i * width, (i + 1) * width) for i in (h, h // group))
            q, k, v = (project(p, f"{n}_proj", x)[..., s] for n, s in (("q", own), ("k", kv), ("v", kv)))
            if config.shift:
                first = np.ones(x.shape[:2], bool) if ids is None else np.diff(ids, axis=1, prepend=-1) != 0
                first = first & (np.arange(x.shape[1]) == 0) if ids is None else first

                def shifted(y, name, first=first, h=h):
                    a = sigmoid(project(p, name, x)[..., h // group, None])
                    before = np.where(first[..., None], 0, np.roll(y, 1, axis=1))
                    return a * before + (1 - a) * y

                k, v = shifted(k, "k_shift"), shifted(v, "v_shift")
            if config.qk_norm == "rms":
                q = rms(q, config.qk_norm_eps) * p["q_norm.scale"][own]
                k = rms(k, config.qk_norm_eps) * p["k_norm.scale"][kv]
            elif config.qk_norm == "rms_all_heads":
                q, k = (
                    (rms(project(p, f"{n}_proj", x), config.qk_norm_eps) * p[f"{n}_norm.scale"])[..., s]
                    for n, s in (("q", own), ("k", kv))
                )
            if config.rotates:
                q, k = (np.stack([turn(y[:, i], i) for i in range(y.shape[1])], axis=1) for y in (q, k))
            g = -softplus(-project(p, "forget_proj", x)[..., h])
            rows = []
            for i in range(x.shape[1]):
                fade = np.cumsum(g[:, i:0:-1], axis=1)[:, ::-1]
                fade = np.concatenate([fade, np.zeros_like(g[:, :1])], axis=1)
                scores = np.einsum("bk,bjk->bj", q[:, i], k[:, : i + 1]) / np.sqrt(width) + fade
                if ids is not None:
                    scores = np.where(ids[:, : i + 1] == ids[:, i : i + 1], scores, -np.inf)
                rows.append(np.einsum("bj,bjk->bk", softmax(scores), v[:, : i + 1]))
            o = np.stack(rows, axis=1)
            if config.output_norm:
                o = rms(o, config.norm_eps) * p["out_norm.scale"][own]
            if config.output_gate:
                o = o * sigmoid(project(p, "gate_proj", x)[..., own])
            heads.append(o)
        return project(p, "out_proj", np.concatenate(heads, axis=-1))

    return run


CONFIGS = [
    ForgettingAttentionConfig.pro(
        d_model=D, n_heads=4, n_kv_heads=2, head_dim=8, positions="rotary", rotary_fraction=0.5, norm_eps=0.1
    ),
    ForgettingAttentionConfig(d_model=D, n_heads=2, qkv_bias=True),
    ForgettingAttentionConfig(d_model=D, n_heads=2, output_gate=True, qk_norm="rms_all_heads", qk_norm_eps=0.1),
    ForgettingAttentionConfig.pro(d_model=D, n_heads=1, output_gate=False),
]


@pytest.mark.parametrize(("documents", "config"), list(zip((IDS, None, None, IDS), CONFIGS, strict=True)))
def test_equation(config, documents):
    """Kills: the gate of the key's own token, a gate of another head, scaled gates, a shift of the wrong side or across
    documents, a norm before the shift or over all heads, one scale for all heads, a swapped eps."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_gradients(mixer, p, x, truth(config), segment_ids=documents)


def test_a_long_text_loses_no_digits():
    """Kills a bias that is a difference of two sums from the first token on: at 20,000 tokens it is off by 1e-2."""
    g = -np.random.default_rng(0).exponential(8.0, size=(1, 20_000, 1)).astype(np.float32)
    t, keys = 7, np.arange(20_000, dtype=np.int32)[None]
    carried = np.zeros((1, 1, 20_000), np.float32)
    carried[0, 0, : -t - 1] = -np.cumsum(-g[0, ::-1, 0].astype(np.float64))[t - 1 + np.arange(20_000 - t - 1, 0, -1)]
    bias, after = forget_bias(jnp.asarray(g[:, -t:]), keys[:, -t:], keys, jnp.asarray(carried))
    expected = np.cumsum(g[0, -t:, 0].astype(np.float64))
    near = np.asarray(bias)[0, 0, :, -t - 1]
    np.testing.assert_allclose(near, expected, rtol=1e-6)
    np.testing.assert_array_equal(after[0, 0], np.asarray(bias)[0, 0, -1])
