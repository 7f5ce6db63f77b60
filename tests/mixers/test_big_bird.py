"""BigBird against its pattern in float64, token by token; the pattern itself, the state and the cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.attention.big_bird import BigBirdConfig, chosen_blocks
from jaxzoo.mixers.base import Context, state_bytes
from tests.mixers.moved import abstract_mixer, assert_computes, moved_mixer
from tests.mixers.refused import assert_refused

D, T = 8, 27
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qkv_bias": True, "out_bias": True}


def truth(config, p, x):
    """Outputs of one document `(t, d)`, of the table's blocks."""
    width, group, size = config.head_width, config.n_heads // config.kv_heads, config.block_size
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    table, rows = chosen_blocks(config, -(-len(x) // size)), []
    for i in range(len(x)):
        seen = [j for j in range(i + 1) if j // size in table[i // size]]
        heads = []
        for h in range(config.n_heads):
            mine, shared = (slice(j * width, (j + 1) * width) for j in (h, h // group))
            weights = np.exp(k[seen, shared] @ q[i, mine] / np.sqrt(width))
            heads.append(weights @ v[seen, shared] / weights.sum())
        rows.append(np.concatenate(heads))
    return np.stack(rows) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)


def make(**fields):
    return moved_mixer(BigBirdConfig(d_model=D, **fields))


def inputs(b=2):
    return np.random.default_rng(0).normal(size=(b, T, D))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "counts", [(2, 3, 3), (0, 2, 1), *(pytest.param(x, marks=pytest.mark.full) for x in ((1, 1, 2), (3, 1, 0)))]
)
def test_pattern(counts):
    """Kills: a random block that is global or in the window, one that is drawn twice, fewer than there could be, a
    global block that is lost at the start, rows that depend on how many there are."""
    g, w, r = counts
    config = BigBirdConfig(n_global_blocks=g, n_window_blocks=w, n_random_blocks=r, seed=7)
    rows = [[j for j in row if j >= 0] for row in chosen_blocks(config, 40)]
    for i, row in enumerate(rows):
        assert len(set(row)) == len(row)
        assert set(range(min(g, i + 1))) | set(range(max(i - w + 1, 0), i + 1)) <= set(row) <= set(range(i + 1))
        assert len(row) == min(g + w + r, i + 1)
        assert row == [j for j in chosen_blocks(config, i + 1)[i] if j >= 0]
    if r:
        drawn = [sorted(set(row) - set(range(g)) - set(range(i - w + 1, i + 1))) for i, row in enumerate(rows)]
        reached = {j for row in drawn[20:] for j in row}
        assert len(reached) > 10, "random blocks lie all over the past"
        other = BigBirdConfig(n_global_blocks=g, n_window_blocks=w, n_random_blocks=r, seed=8)
        assert not np.array_equal(chosen_blocks(config, 40), chosen_blocks(other, 40))


@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": 2, **HEADS},
        {"block_size": 4, "n_global_blocks": 1, "n_window_blocks": 1, "n_random_blocks": 1},
        {"block_size": 1, "n_global_blocks": 0, "n_window_blocks": 2, "n_random_blocks": 3, "seed": 5},
        pytest.param({"block_size": 40}, marks=pytest.mark.full),
    ],
)
def test_equation(fields):
    """Kills: a block one off, keys after the query in its own block, heads or biases mixed up."""
    mixer, p = make(**fields)
    x = inputs()
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    assert_computes(mixer, x, expected)


@pytest.mark.full
def test_documents_have_blocks_of_their_own():
    """Kills global, random and own blocks that are counted from the start of the row."""
    mixer, p = make(block_size=2, n_global_blocks=1, n_window_blocks=1, n_random_blocks=1)
    x, lengths = inputs(1), (1, 13, 3, 10)
    ends = np.cumsum(lengths)
    expected = np.concatenate([truth(mixer.config, p, part) for part in np.split(x[0], ends[:-1])])
    ids = jnp.asarray(np.repeat([4, 1, 2, 0], lengths)[None], jnp.int32)
    close(jax.jit(mixer)(jnp.asarray(x, jnp.float32), Context(segment_ids=ids))[0], expected)


@pytest.mark.slow
def test_rows_at_different_positions_and_an_overrun():
    """Kills: one place in its block for all rows, and the clamped write of a row that runs past the cache."""
    mixer, p = make(block_size=4, positions="none", n_global_blocks=1, n_window_blocks=1, n_random_blocks=1)
    x, starts, rows = inputs(), (2, 13), np.arange(2)[:, None]
    expected = np.stack([truth(mixer.config, p, row) for row in x])
    prefill, step = jax.jit(mixer.prefill), jax.jit(mixer.step)
    now, empty = jnp.asarray(x, jnp.float32), mixer.init_state(1, capacity=21)
    seen = [prefill(now[i : i + 1, :n], empty)[1] for i, n in enumerate(starts)]
    state = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *seen)
    at = np.array(starts)[:, None] + np.arange(12)[None]
    y, state = prefill(now[rows, at[:, :10]], state)
    close(y, expected[rows, at[:, :10]])
    y, state = step(now[rows[:, 0], at[:, 10]], state)
    close(y, expected[rows[:, 0], at[:, 10]])
    y, _ = step(now[rows[:, 0], at[:, 11]], state)
    close(y[0], expected[0, at[0, 11]])
    assert np.isnan(y[1]).all(), "slot 24 is behind the 24 of six whole blocks"


@pytest.mark.full
def test_no_array_of_all_pairs():
    """Kills a mask over all tokens: at 512 tokens no intermediate has 512 x 512 entries."""
    mixer, _ = make(block_size=8)
    program = str(jax.make_jaxpr(jax.grad(lambda x: mixer(x).sum()))(jnp.zeros((1, 512, D))))
    assert "8,64]" in program, "8 queries with the keys of 8 blocks"
    assert "512,512" not in program


def test_state_and_flops_by_hand():
    """11 tokens of blocks of 4 are 12 slots of 2 x 8 floats, and a position. d = 8, 2 heads of 4: four kernels 8 x 8;
    at 64 tokens 8 blocks of 4 keys, twice; at 6 tokens two of the two blocks, 8 queries for 6."""
    config = BigBirdConfig(d_model=8, n_heads=2, block_size=4)
    assert state_bytes(abstract_mixer(config), capacity=11) == 4 * 12 * 16 + 4
    assert config.flops_per_token(64) == 8 * 64 + 4 * 8 * 32
    assert config.flops_per_token(6) == 8 * 64 + 4 * 8 * 8 * 8 / 6


def test_config_errors():
    """Kills a config that fails late, or not at all."""
    cases = [
        ({"block_size": 0}, "block_size=0 must be positive"),
        ({"n_window_blocks": 0}, "n_window_blocks=0 must be positive"),
        ({"n_global_blocks": -1}, "n_global_blocks=-1 must not be negative"),
        ({"seed": -1}, r"seed=-1 must be in \[0, 2\^32\)"),
        ({"positions": "alibi"}, "positions='alibi' must be one of 'none', 'rotary'"),
    ]
    assert_refused(functools.partial(BigBirdConfig, d_model=8), cases)


def test_state_errors():
    """Kills a cache of no slots, and a prompt that does not fit and is cut."""
    mixer, _ = make(block_size=4)
    for capacity in (None, 0):
        with pytest.raises(ValueError, match=f"init_state of attention: capacity={capacity} must be positive"):
            mixer.init_state(1, capacity=capacity)
    with pytest.raises(ValueError, match=r"prefill of attention: t=27 must be at most the 12 slots of the cache"):
        mixer.prefill(jnp.zeros((1, T, D)), mixer.init_state(1, capacity=9))
