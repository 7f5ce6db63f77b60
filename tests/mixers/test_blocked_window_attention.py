"""Blocked window attention against its equation in float64, token by token; the shape of its state and cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.attention.blocked_window_attention import BlockedWindowAttentionConfig
from jaxzoo.mixers.base import Context, state_bytes
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer
from tests.mixers.refused import assert_refused
from tests.pallas_kernels.shared import full, slow

D, T = 12, 23
GROUPED = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True, "out_bias": True}


def truth(config, p, x):
    """Outputs of one document `(t, d)`: for each token and head, the softmax over the keys that the paper names."""
    width, group, w = config.head_width, config.n_heads // config.kv_heads, config.block_size
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    if config.positions == "rotary":
        half = width // 2
        turn = np.exp(1j * np.arange(len(x))[:, None] * config.rotary_base ** (-np.arange(half) / half))
        for y in (q, k):
            for first in range(0, y.shape[1], width):
                pairs = (y[:, first : first + half] + 1j * y[:, first + half : first + width]) * turn
                y[:, first : first + width] = np.concatenate([pairs.real, pairs.imag], axis=1)
    rows = []
    for i in range(len(x)):
        first = max(i // w - config.look_back, 0) * w
        heads = []
        for h in range(config.n_heads):
            mine, shared = (slice(j * width, (j + 1) * width) for j in (h, h // group))
            weights = np.exp(k[first : i + 1, shared] @ q[i, mine] / np.sqrt(width))
            heads.append(weights @ v[first : i + 1, shared] / weights.sum())
        rows.append(np.concatenate(heads))
    return np.stack(rows) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**fields):
    return moved_mixer(BlockedWindowAttentionConfig(d_model=D, **fields))


def inputs(b=2):
    return np.random.default_rng(0).normal(size=(b, T, D))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("look_back", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": 5, **GROUPED},
        {"block_size": 4, "n_heads": 2, "positions": "rotary", "rotary_base": 10.0},
        *(pytest.param({"block_size": size}, marks=pytest.mark.slow) for size in (1, T, 40)),
    ],
)
def test_equation(fields, look_back):
    """Kills: a block one token off, two blocks back, a sliding window in its place, heads or biases mixed up; at once,
    and in calls that are cut inside blocks, at their borders and beyond."""
    mixer, p = make(**fields, look_back=look_back)
    x = inputs()
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    assert_computes(mixer, x, expected)


@pytest.mark.full
@pytest.mark.parametrize("look_back", [False, True])
def test_documents_have_blocks_of_their_own(look_back):
    """Kills blocks counted from the start of the row, which tear a document apart at other places than alone."""
    mixer, p = make(block_size=4, n_heads=2, look_back=look_back)
    x, lengths = inputs(1), (1, 9, 3, 10)
    ends = np.cumsum(lengths)
    expected = np.concatenate([truth(mixer.config, p, part) for part in np.split(x[0], ends[:-1])])
    ids = jnp.asarray(np.repeat([4, 1, 2, 0], lengths)[None], jnp.int32)
    close(mixer(jnp.asarray(x, jnp.float32), Context(segment_ids=ids))[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("look_back", [slow(False), full(True)])
def test_rows_stand_at_different_places_of_a_block(look_back):
    """Kills one block border for the whole batch, and slots of the block before that are taken for the new one's."""
    mixer, p = make(block_size=4, n_heads=2, positions="rotary", look_back=look_back)
    x, starts = inputs(), (2, 12)
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    prefill = jax.jit(mixer.prefill)
    seen = [prefill(jnp.asarray(x[i : i + 1, :n], jnp.float32), mixer.init_state(1))[1] for i, n in enumerate(starts)]
    state = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *seen)
    at = np.array(starts)[:, None] + np.arange(9)[None]
    rows = np.arange(2)[:, None]
    now = jnp.asarray(x[rows, at], jnp.float32)
    y, state = prefill(now[:, :7], state)
    close(y, expected[rows, at[:, :7]])
    for i in (7, 8):
        y_t, state = jax.jit(mixer.step)(now[:, i], state)
        close(y_t, expected[np.arange(2), at[:, i]])


@pytest.mark.full
def test_gradients_of_a_long_row_are_finite():
    """Kills a mask of nothing but minus infinity at 5,000 tokens that no block divides."""
    mixer, _ = make(block_size=16, look_back=True)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5000, D)), jnp.bfloat16)
    y, gradient = jax.jit(jax.value_and_grad(lambda x: mixer(x).astype(jnp.float32).sum()))(x)
    assert np.isfinite(y)
    assert np.isfinite(np.asarray(gradient, np.float32)).all()


def test_state_and_flops_by_hand():
    """One block of 7 keys and values of width 12 and a position; two with look-back. d=12, 2 heads of 6: four kernels
    12x12, two matmuls of width 12 with 7 (14) keys; 21 tokens are 3 blocks, 15 are 3 blocks too."""
    for look_back in (False, True):
        config = BlockedWindowAttentionConfig(d_model=12, n_heads=2, block_size=7, look_back=look_back)
        blocks = 1 + look_back
        assert state_bytes(abstract_mixer(config)) == 4 * (2 * 12 * 7 * blocks) + 4
        for length in (21, 15):
            assert config.flops_per_token(length) == 8 * 144 + 4 * 12 * 7 * blocks * 21 / length
        assert config.flops_per_token(5) == 8 * 144 + 4 * 12 * 5


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"block_size": 0}, "block_size=0 must be positive"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
        ({"look_back": 1}, "look_back=1 must be True or False"),
    ]
    assert_refused(functools.partial(BlockedWindowAttentionConfig, d_model=12), cases)
