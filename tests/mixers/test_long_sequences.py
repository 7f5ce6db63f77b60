"""Values and gradients of long sequences are finite, in float32 and bfloat16.

Kills: a product, window or feature that overflows with the length, parts that vanish together (0 / 0), a mask of
nothing but minus infinity.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers import BlockedWindowAttentionConfig, HyenaConfig, LiquidS4Config, ScatterBrainConfig
from tests.mixers.moved import quick_rngs
from tests.pallas_kernels.shared import full

SCATTER = ScatterBrainConfig(d_model=12, n_heads=2, window=16, n_features=16, init_std=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "t", "scale"),
    [
        (HyenaConfig(d_model=2, n_taps=16384), 16384, 1.0),
        (LiquidS4Config(d_model=2, d_state=8), 16384, 1.0),
        full(BlockedWindowAttentionConfig(d_model=12, block_size=16, look_back=True), 5000, 1.0),
        *((SCATTER, 2000, scale) for scale in (0.0, 15.0, 500.0)),
    ],
    ids=lambda x: type(x).__name__.removesuffix("Config") if hasattr(x, "d_model") else None,
)
def test_values_and_gradients_are_finite(config, t, scale):
    mixer = config.build(rngs=quick_rngs())
    x = scale * np.random.default_rng(0).normal(size=(1, t, config.d_model))
    for dtype in (jnp.float32, jnp.bfloat16):
        run = jax.jit(jax.value_and_grad(lambda x: jnp.square(mixer(x).astype(jnp.float32)).sum()))
        for found in run(jnp.asarray(x, dtype)):
            assert np.isfinite(np.asarray(found, np.float32)).all()
