"""Lightning attention against its recurrence in float64, token by token; its slopes."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.lightning_attention import LightningAttentionConfig, LightningAttentionState
from tests.mixers.float64_truth import compare, sigmoid


def truth(config):
    h, width = config.n_heads, config.inner // config.n_heads
    layer = 1 - config.layer_index / (config.n_layers - 1 + 1e-5) + 1e-5
    slopes = [(1 / 2 ** (8 / h)) ** (head + 1) * layer for head in range(h)]
    if config.slopes == "linear":
        slopes = [8 / h * (1 - config.layer_index / config.n_layers) * head for head in range(h)]

    def token(p, x, state):
        q, k, v = ((x @ p[f"{name}_proj.kernel"]).reshape(len(x), h, width) for name in "qkv")
        q, k, v = (y * sigmoid(y) for y in (q, k, v))
        decay = jnp.exp(-jnp.array(slopes))[None, :, None, None]
        s = decay * state.s + k[..., None] * v[..., None, :]
        o = jnp.einsum("bhk,bhkv->bhv", q, s).reshape(len(x), -1)
        y = o / jnp.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps) * p["norm.scale"]
        return (y * sigmoid(x @ p["gate_proj.kernel"])) @ p["out_proj.kernel"], LightningAttentionState(s)

    return token


@pytest.mark.parametrize("slopes", ["geometric", "linear"])
def test_equation(slopes):
    """Kills: a SiLU that values lack, a factor 1 / sqrt(k), a norm per head or after the gate, slopes of the next head
    or of another layer."""
    config = LightningAttentionConfig(
        d_model=7, n_heads=3, head_dim=4, layer_index=2, n_layers=5, slopes=slopes, norm_eps=1e-3
    )
    compare(config, lambda p, rows: LightningAttentionState(jnp.zeros((rows, 3, 4, 4))), truth(config))


def test_slopes():
    """Kills slopes of another base, worked out by hand: 8 heads, first and last layer."""
    first = LightningAttentionConfig(n_heads=8, n_layers=3)
    last = LightningAttentionConfig(n_heads=8, n_layers=3, layer_index=2)
    np.testing.assert_allclose(first.rates, 0.5 ** np.arange(1, 9), rtol=2e-5)
    np.testing.assert_allclose(last.rates, 1.5e-5 * 0.5 ** np.arange(1, 9), rtol=1e-3)
