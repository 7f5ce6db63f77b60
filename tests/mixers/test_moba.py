"""MoBA against a loop over tokens in float64: choice by block means, one softmax; its errors."""

import numpy as np
import pytest

from jaxzoo.mixers.attention.moba import MoBAConfig
from tests.mixers.moved import assert_gradients, moved_mixer
from tests.mixers.recurrent_truth import rms, sigmoid, softmax

D, T = 9, 17
IDS = np.repeat([[4, 1, 7], [2, 9, 3]], [8, 1, 8], axis=1)


def turn(y):
    n = y.shape[-1] // 2
    pairs = (y[..., :n] + 1j * y[..., n:]) * np.exp(1j * np.arange(len(y))[:, None] * 10000.0 ** (-np.arange(n) / n))
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def documents(ids, row, t):
    """First and last place, exclusive, of the documents of a row."""
    cuts = [] if ids is None else np.flatnonzero(np.diff(ids[row])) + 1
    return list(zip([0, *cuts], [*cuts, t], strict=True))


def attend_rows(q, k, v, chosen, width):
    """Attention of each token to `chosen[i]`, a list of places."""
    return np.stack([softmax(k[at] @ q[i] / np.sqrt(width)) @ v[at] for i, at in enumerate(chosen)])


def truth(config):
    """Outputs `(b, t, d)`, row by row, head by head, document by document."""
    width, group, size = config.head_width, config.n_heads // config.kv_heads, config.block_size

    def project(p, name, x):
        return x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0)

    def run(p, x, ids):
        y = np.zeros((*x.shape[:2], config.n_heads, width))
        for row in range(len(x)):
            for h in range(config.n_heads):
                own, kv = (slice(i * width, (i + 1) * width) for i in (h, h // group))
                q, k, v = (project(p, f"{n}_proj", x[row])[:, s] for n, s in (("q", own), ("k", kv), ("v", kv)))
                if config.qk_norm == "rms":
                    q, k = (rms(z, config.qk_norm_eps) * p[f"{n}_norm.scale"] for n, z in (("q", q), ("k", k)))
                q, k = turn(q), turn(k)
                for first, last in documents(ids, row, x.shape[1]):
                    chosen = []
                    for i in range(last - first):
                        c = i // size
                        earlier = [
                            q[first + i] @ k[first + j * size : first + (j + 1) * size].mean(0) for j in range(c)
                        ]
                        best = np.argsort(earlier)[::-1][: config.n_selected - 1] if c else []
                        places = [j * size + n for j in best for n in range(size)] + list(range(c * size, i + 1))
                        chosen.append(np.array(places, int))
                    part = slice(first, last)
                    y[row, part, h] = attend_rows(q[part], k[part], v[part], chosen, width)
        if config.output_norm:
            y = rms(y, 1e-6) * p["out_norm.scale"]
        y = y.reshape(*x.shape[:2], -1)
        if config.output_gate:
            y = y * sigmoid(x @ p["gate_proj.down.kernel"] @ p["gate_proj.up.kernel"])
        return project(p, "out_proj", y)

    return run


CONFIGS = [
    MoBAConfig(
        d_model=D,
        n_heads=4,
        n_kv_heads=2,
        head_dim=4,
        block_size=2,
        n_selected=3,
        qk_norm="rms",
        output_norm=True,
        output_gate=True,
    ),
    MoBAConfig(d_model=D, n_heads=1, head_dim=6, block_size=3, n_selected=2, qkv_bias=True),
    MoBAConfig(d_model=D, n_heads=1, head_dim=6, block_size=5, n_selected=1),
]


@pytest.mark.parametrize(("documents_", "config"), list(zip((IDS, None, IDS), CONFIGS, strict=True)))
def test_equation(config, documents_):
    """Kills: one block too many, a choice by other keys or for all heads, two softmaxes, blocks of the whole row, a
    gradient through the choice."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_gradients(mixer, p, x, truth(config), segment_ids=documents_)


def test_config_errors():
    """Kills a setting that is accepted and ignored."""
    with pytest.raises(ValueError, match="output_gate=True needs output_norm=True"):
        MoBAConfig(d_model=8, output_gate=True)
