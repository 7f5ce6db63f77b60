"""PaTH attention against a loop over pairs of tokens in float64, with every map as a matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.attention.path_attention import PathAttentionConfig
from jaxzoo.ops.path_attention import PathCache, PathTokens, path_attention
from tests.mixers.moved import assert_gradients, moved_mixer
from tests.mixers.recurrent_truth import conv, rms, sigmoid, silu, softmax, softplus

D, T = 7, 11
IDS = np.repeat([[4, 1, 7], [2, 9, 3]], [5, 1, 5], axis=1)


def pair_loop(q, k, v, w, beta, g, ids):
    """y `(b, t, v)` of one head, g (b, t) or 0; R_i acts on the query first."""
    (b, t, width), y = q.shape, np.zeros((*q.shape[:2], v.shape[2]))
    for row in range(b):
        for i in range(t):
            turned, fade, scores = q[row, i].copy(), 0.0, np.full(t, -np.inf)
            for j in range(i, -1, -1):
                if ids is None or ids[row, i] == ids[row, j]:
                    scores[j] = (k[row, j] @ turned + fade) / np.sqrt(width)
                turned = (np.eye(width) - beta[row, j] * np.outer(w[row, j], w[row, j])) @ turned
                fade += g[row, j]
            y[row, i] = softmax(scores) @ v[row]
    return y


def truth(config):
    """Outputs `(b, t, d)`, head by head; documents have their own convolution."""
    width, group = config.head_width, config.n_heads // config.kv_heads

    def project(p, name, x):
        return x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0)

    def run(p, x, ids):
        raw = project(p, "w_proj.up", project(p, "w_proj.down", x)) if config.w_rank else project(p, "w_proj", x)
        if config.n_taps > 1:
            w = np.zeros_like(raw)
            for row in range(len(x)):
                cuts = [] if ids is None else np.flatnonzero(np.diff(ids[row])) + 1
                parts = np.split(raw[row], cuts)
                w[row] = np.concatenate([silu(conv(part[None], p["w_conv.taps"]))[0] for part in parts])
            raw = w
        heads = []
        for h in range(config.n_heads):
            own, kv = (slice(i * width, (i + 1) * width) for i in (h, h // group))
            q, k, v = (project(p, f"{n}_proj", x)[..., s] for n, s in (("q", own), ("k", kv), ("v", kv)))
            if config.qk_norm == "rms":
                q, k = (rms(y, config.qk_norm_eps) * p[f"{n}_norm.scale"] for n, y in (("q", q), ("k", k)))
            w = raw[..., kv]
            w = w / np.sqrt((w**2).sum(-1, keepdims=True) + 1e-6)
            beta = 2 * sigmoid(project(p, "beta_proj", x)[..., h // group])
            g = -softplus(-project(p, "forget_proj", x)[..., h]) if config.forget_gate else np.zeros(x.shape[:2])
            heads.append(pair_loop(q, k, v, w, beta, g, ids))
        return project(p, "out_proj", np.concatenate(heads, axis=-1))

    return run


CONFIGS = [
    PathAttentionConfig(d_model=D, n_heads=4, n_kv_heads=2, head_dim=3, w_rank=2, qk_norm="rms", forget_gate=True),
    PathAttentionConfig(d_model=D, head_dim=4, w_rank=None, n_taps=1, qkv_bias=True),
    PathAttentionConfig(d_model=D, n_heads=2, head_dim=4, w_rank=None, n_taps=2, qk_norm="rms", qk_norm_eps=0.1),
]


@pytest.mark.parametrize(("documents", "config"), list(zip((IDS, None, None), CONFIGS, strict=True)))
def test_equation(config, documents):
    """Kills: maps in the other order, the key's own map, a missing map of the query, one strength for all heads, a gate
    that is not scaled, a convolution across documents, no SiLU, another eps."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_gradients(mixer, p, x, truth(config), segment_ids=documents)


@pytest.mark.parametrize("documents", [False, True])
def test_chunks_equal_the_loop_over_pairs(documents):
    """Kills: a carry that forgets a map between chunks, a mask by chunk, rows at one position, a rest that is lost. The
    cache holds 3 and 0 random tokens, or none before packed documents."""
    rng, (b, t, h, g, k, v), past = np.random.default_rng(1), (2, 23, 4, 2, 5, 3), np.array([3, 0])
    past = np.zeros(2, int) if documents else past
    n = t + past.max()

    def draw(*shape):
        return rng.normal(size=(b, n, *shape))

    w, beta, gate = draw(g, k), 2 * sigmoid(draw(g)), -softplus(draw(h))
    w = w / np.linalg.norm(w, axis=-1, keepdims=True)
    whole = PathTokens(draw(h, k), draw(g, k), draw(g, v), w, beta, gate)
    ids = np.repeat([[4, 1, 7], [2, 9, 3]], [10, 1, 12], axis=1) if documents else None
    single = [np.float32(x) for x in whole]

    @jax.jit
    def run(tokens):
        empty = PathCache(*(jnp.zeros((b, n, g, m)) for m in (k, v)), jnp.zeros(b, jnp.int32), jnp.zeros((b, h, n)))
        if documents:
            return path_attention(PathTokens(*tokens), empty, jnp.asarray(ids, jnp.int32), chunk_size=5)[0]
        first = PathTokens(*(x[:, : past[0]] for x in tokens))
        cache = path_attention(first, empty)[1]
        cache = jax.tree.map(lambda full, none: jnp.stack([full[0], none[1]]), cache, empty)
        later = [jnp.stack([x[row, at : at + t] for row, at in enumerate(past)]) for x in tokens]
        return path_attention(PathTokens(*later), cache, chunk_size=5)[0]

    y = np.asarray(run(single))
    for head in range(h):
        q, key, value, w, beta, gate = (x[:, :, head if x.shape[2] == h else head // 2] for x in whole)
        expected = pair_loop(q, key, value, w, beta, gate, ids)
        expected = np.stack([expected[row, at : at + t] for row, at in enumerate(past)])
        np.testing.assert_allclose(y[:, :, head], expected, atol=1e-5 * np.abs(expected).max())
