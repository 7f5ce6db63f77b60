"""Exact attention, of all keys, a window, blocks or BigBird's pattern, against float64; what its caches promise.

Kills: heads and groups mixed up, a lost bias, a window or block one token off, a rotation of the wrong channels,
queries that fade as keys do, slopes of the wrong head, a cache that shifts keys when it overruns.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers import (
    AttentionConfig,
    BigBirdConfig,
    BlockedWindowAttentionConfig,
    NystromFormerConfig,
    ScatterBrainConfig,
    SelectiveAttentionConfig,
    SlidingWindowAttentionConfig,
)
from jaxzoo.mixers.attention.big_bird import chosen_blocks
from jaxzoo.mixers.attention.softmax_attention import Attention
from jaxzoo.mixers.base import Inherited
from tests.mixers.attention_truth import attention_truth
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs
from tests.pallas_kernels.shared import full, slow

D, T = 12, 23
GROUPED = {"d_model": D, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True, "out_bias": True}
ROTARY = {"d_model": D, "n_heads": 2, "positions": "rotary", "rotary_base": 10.0}
XPOS = {"d_model": D, "n_heads": 2, "positions": "xpos", "xpos_scale_base": 16.0, "qkv_bias": True}


def seen_by(config):
    """Function of a query's index -> indices of the keys that it sees, in the words of the papers."""
    match config:
        case BigBirdConfig(block_size=size):
            table = chosen_blocks(config, -(-T // size))
            return lambda i: [j for j in range(i + 1) if j // size in table[i // size]]
        case BlockedWindowAttentionConfig(block_size=size, look_back=look_back):
            return lambda i: range(max(i // size - look_back, 0) * size, i + 1)
        case SlidingWindowAttentionConfig(window=window):
            return lambda i: range(max(i - window + 1, 0), i + 1)
    return lambda i: range(i + 1)


@pytest.mark.parametrize(
    "config",
    [
        full(AttentionConfig(d_model=D)),
        AttentionConfig(d_model=D, n_heads=3),
        AttentionConfig(**GROUPED, positions="rotary"),
        AttentionConfig(**ROTARY, rotary_fraction=1 / 3),
        full(AttentionConfig(**GROUPED, positions="xpos", xpos_scale_base=16)),
        AttentionConfig(**XPOS, rotary_fraction=2 / 3),
        full(AttentionConfig(**GROUPED | {"n_kv_heads": 1}, positions="alibi")),
        AttentionConfig(d_model=D, n_heads=3, positions="alibi"),
        SlidingWindowAttentionConfig(**GROUPED, window=5, rotary_fraction=2 / 3, rotary_base=10.0),
        full(SlidingWindowAttentionConfig(d_model=D, window=5, positions="none")),
        slow(SlidingWindowAttentionConfig(**XPOS, window=7)),
        BlockedWindowAttentionConfig(**GROUPED, block_size=5),
        BlockedWindowAttentionConfig(**ROTARY, block_size=4, look_back=True),
        slow(BlockedWindowAttentionConfig(d_model=D, block_size=40, look_back=True)),
        slow(BlockedWindowAttentionConfig(**XPOS, block_size=4, look_back=True)),
        BigBirdConfig(**GROUPED, block_size=2),
        full(BigBirdConfig(d_model=D, block_size=4, n_global_blocks=1, n_window_blocks=1, n_random_blocks=1)),
        full(BigBirdConfig(d_model=D, block_size=1, n_global_blocks=0, n_window_blocks=2, n_random_blocks=3, seed=5)),
        slow(BigBirdConfig(**XPOS, block_size=40)),
        slow(SelectiveAttentionConfig(**XPOS, selection="full")),
    ],
    ids=lambda config: type(config).__name__.removesuffix("Config"),
)
def test_softmax_over_the_keys(config):
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_computes(mixer, x, np.stack([attention_truth(config, p, row, seen_by(config)) for row in x]))


@pytest.mark.parametrize("counts", [(2, 3, 3), (0, 2, 1), full((1, 1, 2)), full((3, 1, 0))])
def test_pattern_of_big_bird(counts):
    """Kills: a random block that is global, in the window or drawn twice, fewer blocks than there could be, rows that
    depend on how many there are."""
    g, w, r = counts
    config = BigBirdConfig(n_global_blocks=g, n_window_blocks=w, n_random_blocks=r, seed=7)
    rows = [[j for j in row if j >= 0] for row in chosen_blocks(config, 40)]
    for i, row in enumerate(rows):
        assert len(set(row)) == len(row) == min(g + w + r, i + 1)
        assert set(range(min(g, i + 1))) | set(range(max(i - w + 1, 0), i + 1)) <= set(row) <= set(range(i + 1))
        assert row == [j for j in chosen_blocks(config, i + 1)[i] if j >= 0]
    if r:
        drawn = [set(row) - set(range(g)) - set(range(i - w + 1, i + 1)) for i, row in enumerate(rows)]
        assert len(set().union(*drawn[20:])) > 10, "random blocks lie all over the past"
        other = BigBirdConfig(n_global_blocks=g, n_window_blocks=w, n_random_blocks=r, seed=8)
        assert not np.array_equal(chosen_blocks(config, 40), chosen_blocks(other, 40))


@pytest.mark.parametrize(
    ("config", "expected", "t"),
    [
        full(BigBirdConfig(d_model=8, block_size=8), "8,64]", 512),
        (NystromFormerConfig(d_model=8, n_landmarks=7), "300,7]", 300),
        (SelectiveAttentionConfig(d_model=8, n_selected=7, n_heads=2), "7,300]", 300),
    ],
    ids=lambda x: type(x).__name__.removesuffix("Config") if hasattr(x, "d_model") else None,
)
def test_no_array_of_all_pairs(config, expected, t):
    """Kills a mask over all pairs of tokens: no intermediate of the gradient has t x t entries."""
    mixer, _ = moved_mixer(config)
    program = str(jax.make_jaxpr(jax.grad(lambda x: mixer(x).sum()))(jnp.zeros((1, t, 8))))
    assert expected in program
    assert f"{t},{t}" not in program


def test_a_full_cache_is_exact_and_an_overrun_is_nan():
    """Kills the clamped write of a dynamic update, which would shift a row's keys and say nothing."""
    mixer, _ = moved_mixer(AttentionConfig(**GROUPED, positions="rotary"))
    x = np.float32(np.random.default_rng(2).normal(size=(2, 9, D)))
    full, prefill, empty = jax.jit(mixer)(x), jax.jit(mixer.prefill), mixer.init_state(1, capacity=8)
    rows = [prefill(x[row : row + 1, :start], empty)[1] for row, start in enumerate((5, 6))]
    state = jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)
    y, state = prefill(np.stack([x[0, 5:8], x[1, 6:9]]), state)
    np.testing.assert_allclose(y[0], full[0, 5:8], atol=1e-4)
    assert np.isnan(y[1]).all()
    y_t, _ = jax.jit(mixer.step)(x[:, 8], state)
    assert np.isnan(y_t).all()


def test_cache_dtype_is_the_callers():
    """Kills a cache that forgets its dtype, and outputs that take it. bfloat16 rounds by 4e-3."""
    mixer, _ = moved_mixer(AttentionConfig(**GROUPED))
    x = np.float32(np.random.default_rng(2).normal(size=(2, 11, D)))
    y, state = jax.jit(mixer.prefill)(x, mixer.init_state(2, capacity=16, dtype=jnp.bfloat16))
    assert (y.dtype, state.k.dtype, state.v.dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    full = jax.jit(mixer)(x)
    assert 0 < np.linalg.norm(y - full) / np.linalg.norm(full) < 6e-3


def test_an_unresolved_config_waits_for_its_model():
    """Kills rules about head widths that are applied before the model width is known."""
    config = AttentionConfig(n_heads=2, positions="rotary", rotary_fraction=0.5)
    with pytest.raises(ValueError, match=r"d_model=None must be known to build the mixer"):
        Attention(config, rngs=quick_rngs())
    config = config.inherit(Inherited(d_model=16, max_length=32, init_std=0.1, out_init_std=0.0))
    assert (config.rotated_channels, config.std, config.out_std) == (4, 0.1, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 16_000, 2**15 - 20])
def test_an_xpos_stream_anywhere_in_its_range(start):
    """Kills overflow, and scores that lose digits towards the end of 2^15 tokens, in a cache of keys
    that are up to 2^58 times longer. Once the window is full, a stream gives the outputs of its tokens alone."""
    window = 6
    mixer, _ = moved_mixer(SlidingWindowAttentionConfig(**XPOS | {"xpos_scale_base": 512.0}, window=window))
    x = np.float32(np.random.default_rng(0).normal(size=(1, 20, D)))
    expected = jax.jit(mixer)(x)
    state = mixer.init_state(1)._replace(position=jnp.asarray([start], jnp.int32))
    y, state = jax.jit(mixer.prefill)(x[:, :19], state)
    last, _ = jax.jit(mixer.step)(x[:, 19], state)
    found = np.concatenate([y, last[:, None]], axis=1)[:, window - 1 :]
    np.testing.assert_allclose(found, expected[:, window - 1 :], rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.full
def test_an_xpos_stream_beyond_its_range_is_nan():
    """Kills scores that stop to fade without notice. At a base of 16 the last position is 1026."""
    mixer, _ = moved_mixer(SlidingWindowAttentionConfig(**XPOS, window=4))
    x = np.float32(np.random.default_rng(0).normal(size=(1, 1030, D)))
    y, state = jax.jit(mixer.prefill)(x[:, :1027], mixer.init_state(1))
    assert np.isfinite(y).all()
    y, _ = jax.jit(mixer.step)(x[:, 1027], state)
    assert np.isnan(y).all()
    with pytest.raises(ValueError, match="xPos: 1030 tokens must be at most 1027, the positions at xpos_scale_base=16"):
        mixer(x)


@pytest.mark.parametrize("config", [NystromFormerConfig, ScatterBrainConfig])
def test_mixers_without_xpos_refuse_it(config):
    """Kills means or random features of keys whose channels differ by powers of ten."""
    with pytest.raises(ValueError, match="positions='xpos' must be one of 'none', 'rotary'"):
        config(d_model=8, positions="xpos")
