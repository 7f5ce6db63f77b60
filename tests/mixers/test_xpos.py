"""Which mixers have xPos, and that the score depends on the distance alone wherever a stream stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import (
    AttentionConfig,
    BigBirdConfig,
    BlockedWindowAttentionConfig,
    LandmarkCATConfig,
    NystromFormerConfig,
    ScatterBrainConfig,
    SelectiveAttentionConfig,
    SlidingWindowAttentionConfig,
)
from tests.mixers.moved import moved, moved_mixer, quick_rngs

T = 12
XPOS = {"d_model": 8, "n_heads": 2, "positions": "xpos", "xpos_scale_base": 16.0, "qkv_bias": True}


def inputs(b, t):
    return jnp.asarray(np.random.default_rng(0).normal(size=(b, t, 8)), jnp.float32)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(SlidingWindowAttentionConfig(**XPOS, window=T), marks=pytest.mark.full),
        *(
            pytest.param(config, marks=pytest.mark.slow)
            for config in (
                BlockedWindowAttentionConfig(**XPOS, block_size=T),
                BigBirdConfig(**XPOS, block_size=T),
                SelectiveAttentionConfig(**XPOS, selection="full"),
                LandmarkCATConfig(**XPOS, block_size=T, filter_keys=False, filter_values=False),
                LandmarkCATConfig(**XPOS, block_size=T // 2, filter_keys=False, filter_values=False),
            )
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_all_exact_mixers_have_the_same_scores(config):
    """Kills: a mixer that gives queries the factors of keys, or takes positions of its own: where everything is seen,
    all of them are attention, which has a test in float64."""
    full, _ = moved_mixer(AttentionConfig(**XPOS))
    mixer = config.build(rngs=quick_rngs())
    nnx.update(mixer, nnx.state(full, nnx.Param))
    x = inputs(2, T)
    expected = jax.jit(full)(x)

    @jax.jit
    def streamed(x):
        head, state = mixer.prefill(x[:, :5], mixer.init_state(2, capacity=T))
        y, state = mixer.step(x[:, 5], state)
        tail, _ = mixer.prefill(x[:, 6:], state)
        return jnp.concatenate([head, y[:, None], tail], axis=1)

    for found in (jax.jit(mixer)(x), streamed(x)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 16_000, 2**15 - 20])
def test_a_stream_anywhere_in_the_range(start):
    """Kills: overflow, or scores that lose digits, towards the end of 2^15 tokens, in a cache of keys that were made
    longer by up to 2^58. Once the window is full of tokens, a stream gives the outputs of those tokens alone."""
    window = 6
    mixer, _ = moved(
        SlidingWindowAttentionConfig(**{**XPOS, "xpos_scale_base": 512.0}, window=window).build(rngs=quick_rngs())
    )
    x = inputs(1, 20)
    expected = jax.jit(mixer)(x)
    state = mixer.init_state(1)._replace(position=jnp.asarray([start], jnp.int32))
    y, state = jax.jit(mixer.prefill)(x[:, :14], state)
    rows, step = [y], jax.jit(mixer.step)
    for i in range(14, 20):
        y_t, state = step(x[:, i], state)
        rows.append(y_t[:, None])
    found = jnp.concatenate(rows, axis=1)[:, window - 1 :]
    np.testing.assert_allclose(found, expected[:, window - 1 :], rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.full
def test_a_stream_beyond_the_range_is_nan():
    """Kills: scores that quietly stop to fade. At a base of 16 the last position is 1026."""
    mixer, _ = moved(lambda: SlidingWindowAttentionConfig(**XPOS, window=4).build(rngs=quick_rngs()))
    x = inputs(1, 1030)
    y, state = jax.jit(mixer.prefill)(x[:, :1027], mixer.init_state(1))
    assert np.isfinite(y).all()
    y, _ = jax.jit(mixer.step)(x[:, 1027], state)
    assert np.isnan(y).all()
    with pytest.raises(ValueError, match="xPos: 1030 tokens must be at most 1027, the positions at xpos_scale_base=16"):
        mixer(x)


@pytest.mark.parametrize("config", [NystromFormerConfig, ScatterBrainConfig])
def test_mixers_without_it_refuse(config):
    """Kills: means of keys that differ by powers of ten, and random features of them."""
    with pytest.raises(ValueError, match="positions='xpos' must be one of 'none', 'rotary'"):
        config(d_model=8, positions="xpos")
