"""The decoder of an autoencoder against its equation in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.last_token_decoder import LastTokenDecoder
from tests.layers.test_mlp import gelu
from tests.mixers.moved import moved, quick_rngs


def normed(x, p, name, kind):
    """LayerNorm or RMSNorm with eps 0.1."""
    x = x - x.mean(-1, keepdims=True) * (kind == "layer")
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * p[f"{name}.scale"] + p.get(f"{name}.bias", 0.0)


@pytest.mark.parametrize(("kind", "width"), [("layer", 7), pytest.param("rms", 6, marks=pytest.mark.full)])
def test_equation(kind, width):
    """Kills: another token than the last, a position counted from 1, sines and cosines that alternate, frequencies that
    end elsewhere than at 1/10000, a norm or a GELU left out, projections in the other order."""
    made, p = moved(
        lambda: LastTokenDecoder(width, norm_kind=kind, norm_eps=0.1, std=0.8, dtype=jnp.float32, rngs=quick_rngs())
    )
    residual = np.random.default_rng(0).normal(size=(2, 5, width))
    half = width // 2
    expected = np.zeros((2, 5, width))
    for t in range(5):
        position = np.zeros(width)
        for i in range(half):
            angle = t / 10000 ** (i / (half - 1))
            position[i], position[half + i] = np.sin(angle), np.cos(angle)
        x = residual[:, -1] + position
        for i in range(2):
            x = gelu(normed(x, p, f"norms.{i}", kind) @ p[f"projections.{i}.kernel"] + p[f"projections.{i}.bias"])
        expected[:, t] = x
    y = jax.jit(made)(np.float32(residual))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
