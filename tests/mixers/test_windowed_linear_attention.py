"""Windowed linear attention against `Attention` where the window is everything, and against its equation elsewhere."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import Attention, AttentionConfig, WindowedLinearAttention, WindowedLinearAttentionConfig
from tests.mixers.moved import quick_rngs

FIELDS: dict[str, Any] = {"d_model": 12, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True}
FIELDS |= {"out_bias": True, "qk_norm": "rms", "positions": "rotary", "rotary_fraction": 2 / 3}


def make(**fields: Any) -> WindowedLinearAttention:
    """A mixer with random, large parameters."""
    mixer = WindowedLinearAttention(WindowedLinearAttentionConfig(**fields), rngs=quick_rngs())
    rng = np.random.default_rng(1)
    nnx.update(mixer, jax.tree.map(lambda x: np.float32(0.5 * rng.normal(size=x.shape)), nnx.state(mixer, nnx.Param)))
    return mixer


def inputs(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


@pytest.mark.full
@pytest.mark.parametrize("feature_map", [pytest.param("none", marks=pytest.mark.full), "taylor"])
def test_a_window_of_all_tokens_is_attention(feature_map):
    """Kills: projections, norms or rotations that are not those of `Attention`, features of tokens in the window."""
    mixer = make(**FIELDS, window=9, feature_map=feature_map, feature_dim=3)
    full = Attention(AttentionConfig(**FIELDS), rngs=quick_rngs(3))
    theirs = dict(nnx.to_flat_state(nnx.state(mixer, nnx.Param)))
    own = {path: theirs[path] for path, _ in nnx.to_flat_state(nnx.state(full, nnx.Param))}
    nnx.update(full, nnx.from_flat_state(own))
    x = inputs(2, 9, 12)
    np.testing.assert_allclose(jax.jit(mixer)(x), jax.jit(full)(x), atol=1e-5)


FULL = [pytest.param("taylor", 3, marks=pytest.mark.full), pytest.param("hedgehog", 0, marks=pytest.mark.full)]


@pytest.mark.parametrize(("feature_map", "window"), [("hedgehog", 3), *FULL])
def test_the_equation(feature_map, window):
    """Token by token in float64. Kills: a token that counts twice or never, features or weights of another head."""
    mixer = make(d_model=8, n_heads=2, window=window, feature_map=feature_map, feature_dim=2, positions="none")
    x = inputs(1, 8, 8)
    q, k, v = (
        np.asarray(x[0], np.float64) @ np.asarray(p.kernel[...], np.float64)
        for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    )
    y, log_weight = np.zeros((8, 8)), np.asarray(mixer.log_weight[...], np.float64) if window else np.zeros(2)
    for h in range(2):
        own = slice(4 * h, 4 * h + 4)
        mapped = [z[:, own] @ np.float64(m[h]) for z, m in ((q, mixer.q_map[...]), (k, mixer.k_map[...]))]
        for i in range(8):
            weights = [
                np.exp(q[i, own] @ k[j, own] / 2)
                if j > i - window
                else np.exp(log_weight[h] if window else 0) * _product(feature_map, mapped, i, j)
                for j in range(i + 1)
            ]
            y[i, own] = weights @ v[: i + 1, own] / np.sum(weights)
    wanted = y @ np.float64(mixer.out_proj.kernel[...])
    np.testing.assert_allclose(jax.jit(mixer)(jnp.asarray(x))[0], wanted, atol=1e-4)


def _product(feature_map: str, mapped: list[np.ndarray], i: int, j: int) -> float:
    q, k = mapped[0][i], mapped[1][j]
    if feature_map == "taylor":
        s = q @ k / np.sqrt(len(q))
        return 1 + s + s**2 / 2
    softmax = lambda z: np.exp(z) / np.exp(z).sum()  # noqa: E731
    return softmax(q) @ softmax(k) + softmax(-q) @ softmax(-k)
