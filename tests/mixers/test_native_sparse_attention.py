"""Native sparse attention against a loop over tokens in float64, branch by branch; its errors."""

import numpy as np
import pytest

from jaxzoo.mixers.attention.native_sparse_attention import NativeSparseAttentionConfig
from tests.mixers.moved import assert_gradients, moved_mixer
from tests.mixers.recurrent_truth import sigmoid, softmax
from tests.mixers.test_moba import IDS, D, T, documents, turn


def truth(config):
    """Outputs `(b, t, d)`, row by row, group by group, document by document."""
    width, group, size = config.head_width, config.n_heads // config.kv_heads, config.block_size

    def project(p, name, x):
        return x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0)

    def token(q, k, v, i):
        """The three branches of the query heads q (r, k) of the i-th token of a document."""
        own, ended, place = i // size, (i + 1) // size, np.arange(len(k))
        cmp, share = np.zeros((len(q), v.shape[1])), np.zeros(own + 1)
        if ended:
            means = [y[: ended * size].reshape(ended, size, width).mean(1) for y in (k, v)]
            weights = softmax(q @ means[0].T / np.sqrt(width))
            cmp, share[:ended] = weights @ means[1], weights.mean(0)[: own + 1]
        share[[0, own, max(own - 1, 0)]] = 2
        best = np.argsort(share)[::-1][: config.n_selected]
        chosen = np.isin(place // size, best) & (place <= i)
        near = (place > i - config.window) & (place <= i)
        both = [softmax(q @ k[seen].T / np.sqrt(width)) @ v[seen] for seen in (chosen, near)]
        return np.stack([cmp, *both], axis=-1)

    def run(p, x, ids):
        y = np.zeros((*x.shape[:2], config.n_heads, width))
        gates = sigmoid(x @ p["gate_proj.kernel"]).reshape(*x.shape[:2], config.n_heads, 3)
        for row in range(len(x)):
            for g in range(config.kv_heads):
                heads, kv = range(g * group, (g + 1) * group), slice(g * width, (g + 1) * width)
                q = [turn(project(p, "q_proj", x[row])[:, h * width : (h + 1) * width]) for h in heads]
                k, v = (project(p, f"{n}_proj", x[row])[:, kv] for n in "kv")
                q, k = np.stack(q, axis=1), turn(k)
                for first, last in documents(ids, row, x.shape[1]):
                    part = slice(first, last)
                    for i in range(last - first):
                        found = token(q[first + i], k[part], v[part], i)
                        y[row, first + i, heads] = np.einsum("rvn,rn->rv", found, gates[row, first + i, heads])
        return project(p, "out_proj", y.reshape(*x.shape[:2], -1))

    return run


CONFIGS = [
    NativeSparseAttentionConfig(d_model=D, n_heads=4, n_kv_heads=2, head_dim=4, block_size=2, n_selected=4, window=3),
    NativeSparseAttentionConfig(d_model=D, n_heads=3, n_kv_heads=1, head_dim=4, block_size=2, n_selected=3, window=1),
    NativeSparseAttentionConfig(d_model=D, n_heads=2, head_dim=4, block_size=3, n_selected=4, window=20),
]


@pytest.mark.parametrize(("packed", "config"), list(zip((IDS, None, None), CONFIGS, strict=True)))
def test_equation(config, packed):
    """Kills: a block that has not ended among the means, a choice per head, by sums or by logits, a forced block that
    is missing or comes on top, a window one off, swapped gates, a gradient through the choice."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_gradients(mixer, p, x, truth(config), segment_ids=packed)


def test_config_errors():
    """Kills a setting that is accepted and ignored."""
    with pytest.raises(ValueError, match="n_selected=2 must be at least 3"):
        NativeSparseAttentionConfig(d_model=8, n_selected=2)
