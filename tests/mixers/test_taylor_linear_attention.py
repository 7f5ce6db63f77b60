"""TaylorLinearAttention against its equation in float64, head by head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.linear.taylor_linear_attention import TaylorLinearAttention, TaylorLinearAttentionConfig
from tests.mixers.moved import assert_computes, quick_rngs

D = 6


def truth(config, mixer, x):
    """Outputs from the parameters: for each head the weights of all tokens, then the output projection."""
    q, k, v, out = (
        np.asarray(linear.kernel[...], np.float64)
        for linear in (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.out_proj)
    )
    width, group = config.feature_dim, config.n_heads // config.kv_heads
    heads = []
    for head in range(config.n_heads):
        shared = head // group
        queries = x @ q[:, head * width : (head + 1) * width]
        keys = x @ k[:, shared * width : (shared + 1) * width]
        values = x @ v[:, shared * config.value_width : (shared + 1) * config.value_width]
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(width)
        weights = np.tril(1 + scores + scores**2 / 2)
        if config.decay:
            i, j = np.indices(scores.shape[1:])
            weights = weights * (1 - 2.0 ** (-5 - head)) ** np.maximum(i - j, 0)
        y = weights @ values
        if config.normalize:
            y = y / (weights.sum(-1, keepdims=True) + config.eps)
        if config.output_scaling:
            y = y * (x @ np.asarray(mixer.scale_proj.kernel[...], np.float64)[:, head : head + 1])
        heads.append(y)
    return np.concatenate(heads, -1) @ out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "decay": True, "output_scaling": True, "eps": 0.5},
        {"n_heads": 2, "normalize": False, "chunk_size": 2, "feature_dim": 3},
    ],
)
def test_equation(options):
    """Kills heads laid out feature-major, groups that take the wrong keys, a decay that starts at head 1, a
    scaling of the wrong head, and config fields that reach no code (each set off its default in some
    case)."""
    config = TaylorLinearAttentionConfig(d_model=D, init_std=0.8, **options)
    mixer = TaylorLinearAttention(config, rngs=quick_rngs())
    x = np.random.default_rng(0).normal(size=(2, 7, D)).astype(np.float32)
    expected = truth(config, mixer, x.astype(np.float64))
    assert_computes(mixer, x, expected)


def test_chunk_size_reaches_the_op():
    """Kills a field that is read nowhere: only chunks of less than the sequence make features (66 for k =
    10)."""
    for chunk_size, makes_features in ((None, False), (4, True)):
        config = TaylorLinearAttentionConfig(d_model=D, feature_dim=10, chunk_size=chunk_size)
        mixer = TaylorLinearAttention(config, rngs=quick_rngs())
        program = str(jax.make_jaxpr(mixer.__call__)(jnp.ones((1, 9, D))))
        assert ("f32[1,1,66," in program) == makes_features


def test_output_projection_has_its_own_init():
    """Kills an output projection that is drawn like the others."""
    config = TaylorLinearAttentionConfig(d_model=32, init_std=0.02, out_init_std=0.3)
    mixer = TaylorLinearAttention(config, rngs=quick_rngs())
    np.testing.assert_allclose(np.asarray(mixer.out_proj.kernel[...]).std(), 0.3, rtol=0.1)
    np.testing.assert_allclose(np.asarray(mixer.v_proj.kernel[...]).std(), 0.02, rtol=0.1)


def test_decay_of_the_released_config():
    """Kills a decay whose exponent is fixed, or counted from the last head."""
    config = TaylorLinearAttentionConfig(d_model=8, n_heads=2, feature_dim=2, decay=True, decay_const=-3)
    mixer = TaylorLinearAttention(config, rngs=quick_rngs())
    state = jax.tree.map(jnp.ones_like, mixer.init_state(1))
    zero = jax.tree.map(jnp.zeros_like, state)
    x_t = jax.random.normal(jax.random.key(0), (1, 8))
    step = jax.jit(mixer.step)
    kept = np.asarray(step(x_t, state)[1].z) - step(x_t, zero)[1].z
    np.testing.assert_allclose(kept, np.broadcast_to(np.array([7 / 8, 15 / 16])[None, :, None], kept.shape), rtol=1e-5)
