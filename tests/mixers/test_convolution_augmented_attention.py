"""Convolution-augmented attention against Definition 1 in float64, position by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.head_filters import head_conv
from jaxzoo.mixers import (
    Attention,
    AttentionConfig,
    ConvolutionAugmentedAttention,
    ConvolutionAugmentedAttentionConfig,
)
from tests.mixers.attention_truth import rotated
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 12, 9


def convolved(x, taps):
    """`x` a list of `(t, k)` by head; taps (w, h) or (w, from, to)."""
    mixing = taps if taps.ndim == 3 else np.stack([np.diag(tap) for tap in taps])
    y = [np.zeros_like(x[0]) for _ in x]
    for a, matrix in enumerate(mixing):
        for g in range(len(x)):
            for h in range(len(x)):
                for i in range(a, len(x[0])):
                    y[h][i] += matrix[g, h] * x[g][i - a]
    return y


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def truth(config, p, u):
    """Outputs `(t, d)` of one row."""
    k_dim, parts = config.head_width, {}
    for name, letter in (("queries", "q"), ("keys", "k"), ("values", "v")):
        kernel, bias = p[f"{letter}_proj.kernel"], p.get(f"{letter}_proj.bias", 0.0)
        n = config.heads_of(name)
        columns = [slice(h * k_dim, (h + 1) * k_dim) for h in range(n)]
        taps = p.get(f"head_filters.{name}")
        if config.normalize:
            inputs = [u] * n if taps is None else convolved([u] * n, taps)
            y = [unit(x) @ kernel[:, own] for x, own in zip(inputs, columns, strict=True)]
        else:
            y = [(u @ kernel + bias)[:, own] for own in columns]
            y = y if taps is None else convolved(y, taps)
        if config.positions != "none" and name != "values":
            fading = (-1 if name == "keys" else 1) * (config.positions == "xpos")
            y = [rotated(x, fading=fading) for x in y]
        parts[name] = y
    group = config.n_heads // config.kv_heads
    scores = [q @ parts["keys"][h // group].T / np.sqrt(k_dim) for h, q in enumerate(parts["queries"])]
    if config.filters == "maps":
        mixed = [np.zeros_like(s) for s in scores]
        for a, matrix in enumerate(p["map_taps"]):
            for g in range(config.n_heads):
                for h in range(config.n_heads):
                    mixed[h][:, a:] += matrix[g, h] * scores[g][:, : scores[g].shape[1] - a]
        scores = mixed
    heads = []
    for h, s in enumerate(scores):
        w = np.where(np.tri(len(u), dtype=bool), np.exp(s - s.max(1, keepdims=True)), 0)
        heads.append(w / w.sum(1, keepdims=True) @ parts["values"][h // group])
    return np.concatenate(heads, axis=1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"n_heads": 3, "n_taps": 4, "positions": "rotary"},
        pytest.param({"n_heads": 3, "positions": "xpos", "xpos_scale_base": 16}, marks=pytest.mark.full),
        {"n_heads": 3, "filters": "mixing", "qkv_bias": True, "out_bias": True},
        {"n_heads": 6, "n_kv_heads": 2, "filters": "mixing", "n_taps": 2, "filter_values": False},
        {"n_heads": 2, "filter_queries": False, "filter_keys": False, "n_taps": 12},
        {"n_heads": 2, "normalize": True, "filter_keys": False},
        {"n_heads": 6, "n_kv_heads": 2, "filters": "maps", "positions": "rotary"},
    ],
)
def test_equation(options):
    """Kills: a filter off by one, turned around, of another head or another part, from instead of to; a rotation before
    the filter; a norm after the projection; an option that nothing reads."""
    config = ConvolutionAugmentedAttentionConfig(d_model=D, **options)
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = np.stack([truth(config, p, row) for row in x])

    assert_computes(mixer, x, expected, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("filters", ["head", "mixing", "maps"])
def test_delta_filters_are_plain_attention(filters):
    """Kills an initial filter that already looks back."""
    config = {"d_model": D, "n_heads": 3, "positions": "rotary"}
    plain = Attention(AttentionConfig(**config), rngs=quick_rngs())
    mixer = ConvolutionAugmentedAttention(
        ConvolutionAugmentedAttentionConfig(**config, filters=filters, filter_init="delta"), rngs=quick_rngs()
    )
    x = jax.random.normal(jax.random.key(0), (2, T, D))
    np.testing.assert_allclose(mixer(x), plain(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("filters", ["head", "mixing"])
def test_uniform_taps_have_their_scale(filters):
    """Kills a fan-in that counts heads, and an initialisation that nothing reads."""
    config = ConvolutionAugmentedAttentionConfig(d_model=64, n_heads=16, n_taps=16, filters=filters)
    mixer = ConvolutionAugmentedAttention(config, rngs=quick_rngs())
    taps = np.abs(np.asarray(mixer.head_filters.keys[...]))
    assert 0.24 < taps.max() <= 0.25


def test_head_conv_refuses():
    """Kills taps of other heads that broadcast, and a history that is cut."""
    x = jnp.ones((1, 4, 3, 2))
    with pytest.raises(ValueError, match=r"taps of shape \(2, 1\) must be \(w, h\) or \(w, h, h\) with h=3"):
        head_conv(x, jnp.ones((2, 1)))
    with pytest.raises(ValueError, match="history of 3 inputs must hold 1"):
        head_conv(x, jnp.ones((2, 3)), jnp.ones((1, 3, 3, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(70, 3), (70, 3, 3)])
def test_a_long_filter_is_the_same_convolution(shape):
    """Kills a loop over the taps that is turned around, ends early, or forgets documents or the history: value and
    gradients against float64 sums."""
    rng = np.random.default_rng(0)
    x, taps, past, weight = (rng.normal(size=s) for s in ((2, 90, 3, 2), shape, (2, 69, 3, 2), (2, 90, 3, 2)))
    ids = np.repeat([[4] * 8 + [2] * 82, [1] * 75 + [0] * 15], 1, axis=0)

    def truth(before, same):
        signal, mixing = np.concatenate([before, x], axis=1), taps if taps.ndim == 3 else taps[:, :, None] * np.eye(3)
        y, dx, dtaps = np.zeros_like(x), np.zeros_like(signal), np.zeros_like(mixing)
        for i in range(90):
            for a in range(70):
                read = np.where(same(i, i - a)[:, None, None], signal[:, 69 + i - a], 0.0)
                y[:, i] += np.einsum("bgk,gh->bhk", read, mixing[a])
                dtaps[a] += np.einsum("bgk,bhk->gh", read, weight[:, i])
                back = np.einsum("bhk,gh->bgk", weight[:, i], mixing[a])
                dx[:, 69 + i - a] += np.where(same(i, i - a)[:, None, None], back, 0.0)
        return y, dx[:, 69:], dtaps if taps.ndim == 3 else np.einsum("agg->ag", dtaps)

    f32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    one = lambda i, j: np.array([True, True])  # noqa: E731
    own = lambda i, j: np.array([j >= 0 and row[i] == row[j] for row in ids])  # noqa: E731
    for history, segment_ids, same in ((past, None, one), (None, jnp.asarray(ids, jnp.int32), own)):
        before = np.zeros_like(past) if history is None else history

        def run(x, taps, history=history, segment_ids=segment_ids):
            y = head_conv(x, taps, None if history is None else f32(history), segment_ids=segment_ids)
            return (y * f32(weight)).sum(), y

        (_, y), gradients = jax.jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True))(f32(x), f32(taps))
        for found, expected in zip((y, *gradients), truth(before, same), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
