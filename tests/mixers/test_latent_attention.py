"""Multi-head latent attention against a loop over tokens in float64, head by head; its cache."""

import numpy as np
import pytest

from jaxzoo.mixers.attention.latent_attention import LatentAttentionConfig
from jaxzoo.mixers.base import state_bytes
from tests.mixers.moved import abstract_mixer, assert_gradients, moved_mixer
from tests.mixers.recurrent_truth import rms, softmax

D, T = 10, 11
IDS = np.repeat([[4, 1, 7], [2, 9, 3]], [5, 1, 5], axis=1)


def turn(y, config):
    """Tokens `(b, t, k)` rotated to their positions, by complex numbers."""
    n = y.shape[-1] // 2
    pairs = y[..., 0::2] + 1j * y[..., 1::2] if config.rotary_interleaved else y[..., :n] + 1j * y[..., n:]
    pairs = pairs * np.exp(1j * np.arange(y.shape[1])[:, None] * config.rotary_base ** (-np.arange(n) / n))
    parts = [pairs.real, pairs.imag]
    return np.stack(parts, axis=-1).reshape(y.shape) if config.rotary_interleaved else np.concatenate(parts, axis=-1)


def truth(config):
    """Outputs `(b, t, d)`: keys and values of every head are made from c."""
    n, r, v_dim = config.still, config.rotated, config.values

    def run(p, x, ids):
        if config.q_rank:
            queries = rms(x @ p["q_down.kernel"], config.norm_eps) * p["q_norm.scale"] @ p["q_up.kernel"]
        else:
            queries = x @ p["q_proj.kernel"]
        down = x @ p["kv_down.kernel"]
        c = rms(down[..., : config.latent], config.norm_eps) * p["kv_norm.scale"]
        k_r, heads = turn(down[..., config.latent :], config), []
        for h in range(config.n_heads):
            q = queries[..., h * (n + r) : (h + 1) * (n + r)]
            kv = c @ p["kv_up.kernel"][:, h * (n + v_dim) : (h + 1) * (n + v_dim)]
            q_n, q_r, rows = q[..., :n], turn(q[..., n:], config), []
            for i in range(x.shape[1]):
                scores = np.einsum("bk,bjk->bj", q_n[:, i], kv[:, : i + 1, :n])
                scores = scores + np.einsum("bk,bjk->bj", q_r[:, i], k_r[:, : i + 1])
                scores = config.score_factor * scores / np.sqrt(n + r)
                if ids is not None:
                    scores = np.where(ids[:, : i + 1] == ids[:, i : i + 1], scores, -np.inf)
                rows.append(np.einsum("bj,bjv->bv", softmax(scores), kv[:, : i + 1, n:]))
            heads.append(np.stack(rows, axis=1))
        return np.concatenate(heads, axis=-1) @ p["out_proj.kernel"]

    return run


CONFIGS = [
    LatentAttentionConfig(
        d_model=D, n_heads=3, head_dim=5, value_dim=4, rope_dim=4, q_rank=7, kv_rank=6, score_factor=1.5, norm_eps=0.1
    ),
    LatentAttentionConfig.fla(d_model=D, n_heads=2, rope_dim=4, rotary_base=30.0),
]


@pytest.mark.parametrize(("documents", "config"), list(zip((IDS, None), CONFIGS, strict=True)))
def test_equation(config, documents):
    """Kills: a rotary key per head, a norm of the rotary part, another scale, halves for pairs, k and v swapped."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_gradients(mixer, p, x, truth(config), segment_ids=documents)


def test_the_published_cache():
    """Kills a cache of keys and values: DeepSeek-V3 keeps 512 + 64 numbers per token, where 128 heads have 40,960."""
    v3 = {"n_heads": 128, "head_dim": 128, "rope_dim": 64, "q_rank": 1536, "kv_rank": 512}
    mixer = abstract_mixer(LatentAttentionConfig(d_model=7168, **v3))
    assert state_bytes(mixer, capacity=10) == 4 * (10 * (512 + 64) + 1)
    with pytest.raises(ValueError, match="rope_dim=3 must be even"):
        LatentAttentionConfig(d_model=8, rope_dim=3)
