"""NystromFormer against its equations in float64, head by head; the pseudo-inverse; what it costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.attention.nystromformer import NystromFormerConfig, pseudo_inverse
from tests.mixers.moved import moved_mixer

D, T = 8, 17


def softmax(scores, masked):
    weights = np.exp(scores) * (np.tri(*scores.shape) if masked else 1)
    return weights / weights.sum(-1, keepdims=True)


def truth(config, p, x):
    """Outputs of one row `(t, d)`."""
    t, width, m = len(x), config.head_width, config.n_landmarks
    masked = config.form == "release"
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    ends = np.cumsum([t // m] * (m - t % m) + [t // m + 1] * (t % m))
    heads = []
    for h in range(config.n_heads):
        qh, kh, vh = (y[:, h * width : (h + 1) * width] for y in (q, k, v))
        score = lambda a, b: a @ b.T / np.sqrt(width)  # noqa: E731
        if t <= m:
            y = softmax(score(qh, kh), masked) @ vh
        else:
            q_marks, k_marks = (np.stack([part.mean(0) for part in np.split(z, ends[:-1])]) for z in (qh, kh))
            a = softmax(score(q_marks, k_marks), masked)
            z = a.T / (np.abs(a).sum(0).max() * np.abs(a).sum(1).max())
            for _ in range(config.n_iterations):
                z = z @ (13 * np.eye(m) - a @ z @ (15 * np.eye(m) - a @ z @ (7 * np.eye(m) - a @ z))) / 4
            y = softmax(score(qh, k_marks), masked) @ z @ softmax(score(q_marks, kh), masked) @ vh
        half = config.n_taps // 2
        for a in range(config.n_taps):
            at = np.arange(t) + half - a
            y = y + p["taps"][a, h] * np.where(((at >= 0) & (at < t))[:, None], vh[np.clip(at, 0, t - 1)], 0)
        heads.append(y)
    return np.concatenate(heads, axis=1) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**fields):
    return moved_mixer(NystromFormerConfig(d_model=D, **fields))


@pytest.mark.parametrize("form", ["paper", "release"])
@pytest.mark.parametrize(
    "fields",
    [
        {"n_landmarks": 5, "n_heads": 2, "n_taps": 3, "qkv_bias": True, "out_bias": True},
        {"n_landmarks": 4, "n_taps": 0, "n_iterations": 2},
        *(pytest.param({"n_landmarks": n, "n_taps": w}, marks=pytest.mark.slow) for n, w in ((17, 9), (1, 1))),
    ],
)
def test_equation(fields, form):
    """Kills: segments of another length, the last one lost, landmarks of queries for those of keys, an inverse of
    another start, a filter that is shifted, mirrored or of another head, a mask of the wrong matrix."""
    mixer, p = make(**fields, form=form)
    x = 0.5 * np.random.default_rng(0).normal(size=(2, T, D))
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    found = jax.jit(mixer)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_pseudo_inverse():
    """Kills a wrong coefficient, which converges elsewhere or not at all: the inverse of a matrix that has one, the
    Moore-Penrose inverse of one that has none, and matrices of a batch apart."""
    rng = np.random.default_rng(0)
    regular = softmax(3 * np.eye(5) + rng.normal(size=(5, 5)), masked=False)
    singular = softmax(np.repeat(rng.normal(size=(1, 5)), 5, axis=0), masked=False)
    found = jax.jit(pseudo_inverse, static_argnums=1)(jnp.asarray(np.stack([regular, singular]), jnp.float32), 6)
    for one, matrix in zip(found, (regular, singular), strict=True):
        np.testing.assert_allclose(one, np.linalg.pinv(matrix), atol=1e-3)
