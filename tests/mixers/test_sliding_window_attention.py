"""Sliding window attention against `Attention` on each token's own window, near the start and far from it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.attention.sliding_window_attention import (
    SlidingWindowAttention,
    SlidingWindowAttentionConfig,
    SlidingWindowAttentionState,
)
from jaxzoo.mixers.attention.softmax_attention import Attention, AttentionConfig
from jaxzoo.mixers.base import state_bytes
from tests.mixers.moved import abstract_mixer, quick_rngs
from tests.mixers.refused import assert_refused

WINDOW = 5
FIELDS = {"d_model": 12, "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True, "out_bias": True}
ROTARY = {"rotary_fraction": 2 / 3, "rotary_base": 10.0}


def make(positions: str = "rotary") -> tuple[SlidingWindowAttention, Attention]:
    """The mixer, and full attention with the same parameters, random and large."""
    fields: dict[str, Any] = {**FIELDS, **ROTARY, "positions": positions}
    mixer = SlidingWindowAttention(SlidingWindowAttentionConfig(**fields, window=WINDOW), rngs=quick_rngs())
    full = Attention(AttentionConfig(**fields), rngs=quick_rngs())
    params, rng = nnx.state(mixer, nnx.Param), np.random.default_rng(1)
    random = jax.tree.map(lambda leaf: np.float32(0.4 * rng.normal(size=leaf.shape)), params)
    for each in (mixer, full):
        nnx.update(each, random)
    return mixer, full


def inputs(*shape: int) -> np.ndarray:
    return np.float32(np.random.default_rng(2).normal(size=shape))


def window_by_window(full: Attention, x: np.ndarray) -> np.ndarray:
    """Rotary scores depend on differences only: output `i` is the last of attention to `i`'s window alone."""
    windows = np.lib.stride_tricks.sliding_window_view(x, WINDOW, axis=1)
    b, n, d, _ = windows.shape
    attend = jax.jit(full)
    late = attend(windows.transpose(0, 1, 3, 2).reshape(b * n, WINDOW, d))[:, -1].reshape(b, n, d)
    return np.concatenate([attend(x[:, : WINDOW - 1]), late], axis=1)


@pytest.mark.parametrize(
    ("t", "positions"), [(61, "rotary"), *(pytest.param(t, "none", marks=pytest.mark.full) for t in (9, 61))]
)
def test_each_token_sees_its_window(t: int, positions: str) -> None:
    """Kills: a window one off, keys of other blocks, rotation that depends on the block."""
    mixer, full = make(positions)
    x = inputs(2, t, 12)
    np.testing.assert_allclose(jax.jit(mixer)(x), window_by_window(full, x), atol=1e-5)


@pytest.mark.slow
def test_far_from_the_start() -> None:
    """Kills: float32 angles and slots that lose count at position 100,000, and rows that share a position."""
    mixer, full = make()
    x, (k, v) = inputs(2, 14, 12), inputs(2, 2, WINDOW, 2, 6)
    state = SlidingWindowAttentionState(*map(jnp.asarray, (k, v, [100_000, 100_003])))
    y, state = jax.jit(mixer.prefill)(x[:, :11], state)
    step, outputs = jax.jit(mixer.step), [y]
    for i in range(11, 14):
        y_t, state = step(x[:, i], state)
        outputs.append(y_t[:, None])
    expected = window_by_window(full, x)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1)[:, WINDOW - 1 :], expected[:, WINDOW - 1 :], atol=1e-5)

    kernel, bias = (np.float64(leaf[...]) for leaf in (mixer.k_proj.kernel, mixer.k_proj.bias))
    keys = (np.float64(x) @ kernel + bias).reshape(2, 14, 2, 6)
    for row, start in enumerate((100_000, 100_003)):
        for i in range(14 - WINDOW, 14):
            turn = np.exp(1j * (start + i) * 10.0 ** (-np.arange(2) / 2))
            pairs = (keys[row, i, :, :2] + 1j * keys[row, i, :, 2:4]) * turn
            key = np.concatenate([pairs.real, pairs.imag, keys[row, i, :, 4:]], axis=1)
            np.testing.assert_allclose(state.k[row, (start + i) % WINDOW], key, atol=1e-5)


@pytest.mark.slow
def test_rows_at_different_positions() -> None:
    """Kills: a ring read in slot order, or at one offset for all rows, and unwritten slots seen."""
    mixer, _ = make()
    x, prefill, empty = inputs(2, 17, 12), jax.jit(mixer.prefill), mixer.init_state(1)
    full, rows, starts = np.asarray(jax.jit(mixer)(x)), np.arange(2)[:, None], (3, 13)
    states = [prefill(x[row : row + 1, :start], empty)[1] for row, start in enumerate(starts)]
    state = jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)
    at = np.array(starts)[:, None] + np.arange(4)[None, :]
    y, state = prefill(x[rows, at[:, :3]], state)
    np.testing.assert_allclose(y, full[rows, at[:, :3]], atol=1e-5)
    y_t, _ = jax.jit(mixer.step)(x[rows, at][:, 3], state)
    np.testing.assert_allclose(y_t, full[rows, at][:, 3], atol=1e-5)


def test_state_bytes_against_the_paper() -> None:
    """Based, eq. 11: 2 d w entries. Ours adds the position, and has fewer where heads are grouped."""
    whole = SlidingWindowAttentionConfig(d_model=12, n_heads=2, window=7)
    assert state_bytes(abstract_mixer(whole)) == 4 * (2 * 12 * 7) + 4
    grouped = SlidingWindowAttentionConfig(d_model=12, n_heads=2, n_kv_heads=1, window=7)
    assert state_bytes(abstract_mixer(grouped)) == 4 * (2 * 12 * 7) // 2 + 4


def test_flops_by_hand() -> None:
    """d=8, 2 heads of 4: four kernels 8x8; at t=64 blocks of 16 queries meet 32 keys of width 4, twice."""
    config = SlidingWindowAttentionConfig(d_model=8, n_heads=2, window=16)
    assert config.flops_per_token(64) == 2 * 4 * 64 + 2 * 2 * 2 * 4 * 32


def test_config_errors():
    cases = [
        ({"window": 0}, "window=0 must be positive"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
        ({"head_dim": 3}, "rotary_fraction=1.0 times head_dim=3 must be an even"),
    ]
    assert_refused(functools.partial(SlidingWindowAttentionConfig, d_model=12), cases)
