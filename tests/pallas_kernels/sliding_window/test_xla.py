"""`xla`: values, caches and all gradients against float64, at every border of a block, a step and a call."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.sliding_window import (
    SlidingWindowCache,
    keys_per_query,
    sliding_window_attention,
    xla,
)
from tests.pallas_kernels.shared import all_shapes, assert_close, full, lowered, relative_l2, slow
from tests.pallas_kernels.sliding_window.cases import Call, measured, truth

SETTINGS = {"plain": {}, "segments": {"segments": True, "scale": 0.7}, "cache": {"cache": True, "b": 3}}


def check(call, **options):
    """float32: 1e-5, its gradients 1e-4, as style.md."""
    outputs, gradients = measured(call, implementation="xla", **options)
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


CORE = [(2, 3), (16, 39)]
GRID = [(16, 16), (64, 65), (64, 513)]
REST = [(1, 1), (2, 1), (33, 32), (100, 101), (100, 513)]


@pytest.mark.parametrize(("window", "t"), [*CORE, *(full(*x) for x in GRID), *(slow(*x) for x in REST)])
def test_values_and_gradients(window, t):
    """Kills a wrong mask, block, remainder, group sum or gradient: random tokens and cotangents."""
    check(Call(t=t, window=window))


@pytest.mark.usefixtures("default_compilation")
def test_as_users_compile():
    """Kills wrong numbers of optimized programs alone: several steps of the loop and a remainder, from a cache."""
    check(Call(t=135, window=32, cache=True, b=3))


@pytest.mark.parametrize(
    ("window", "t"),
    [
        (5, 2),
        (16, 40),
        full(1, 3),
        full(64, 1),
        full(64, 63),
        slow(64, 513),
    ],
)
def test_from_a_cache(window, t):
    """Kills history misplaced by a slot, unwritten slots seen, rows that share a position, and gradients that do not
    reach the cache or come through it doubled; one row fills the ring for the first time."""
    check(Call(t=t, window=window, cache=True, b=3))


@pytest.mark.parametrize(
    ("setting", "n_blocks"), [("cache", 3), full("segments", 3), full("plain", 1), slow("cache", 7)]
)
def test_steps_of_the_loop(setting, n_blocks, monkeypatch):
    """Kills what is right only in one step: 8 blocks of 16 queries with 32 keys before them, by 1, 3 or 7."""
    call = Call(t=125, window=32, **SETTINGS[setting])
    monkeypatch.setattr(xla, "STEP_BYTES", n_blocks * 4 * call.b * call.h * 16 * 48)
    check(call)


@pytest.mark.parametrize(("setting", "window"), [slow("segments", 85), full("plain", 40), full("cache", 90)])
def test_blocks_of_a_wide_window(setting, window, monkeypatch):
    """Kills blocks that are right only if they are half a window: 6 of 16, behind 3 to 6 blocks of keys."""
    for name, value in {"MAX_BLOCK": 16, "WHOLE_BYTES": 0, "WHOLE_LENGTH": 0, "STEP_BYTES": 2**15}.items():
        monkeypatch.setattr(xla, name, value)
    check(Call(t=90, window=window, **SETTINGS[setting]))


@pytest.mark.parametrize(("setting", "t"), [full("segments", 70), slow("plain", 200), full("segments", 33)])
def test_parts_of_a_single_block(setting, t, monkeypatch):
    """Kills a part that reads keys or ids of another, a remainder that is lost, gradients of keys that only the last
    part sends: 2 to 8 parts of 16 or more queries."""
    monkeypatch.setattr(xla, "MIN_PART", 16)
    call = Call(t=t, window=t + 3, **SETTINGS[setting])
    check(call)
    q, k, v = (np.asarray(x, np.float32) for x in call.arrays())
    attend = functools.partial(sliding_window_attention, window=t + 3, implementation="xla")
    shapes = set(all_shapes(jax.make_jaxpr(attend)(q, k, v).jaxpr))
    size = 25 if t == 200 else 16
    assert any(shape[-2:] == (size, 2 * size) for shape in shapes)


@pytest.mark.full
def test_memory_of_a_window_of_all_tokens():
    """Kills t x t scores of long sequences: 64 MiB here, where blocks take 4 MiB at a time."""
    tokens = [jax.ShapeDtypeStruct((1, 2048, 4, 8), jnp.float32)] * 3
    run = jax.jit(functools.partial(sliding_window_attention, window=2048, implementation="xla"))
    assert run.lower(*tokens).compile().memory_analysis().temp_size_in_bytes < 2**24


@pytest.mark.parametrize("heads", [(6, 2), slow((1, 1)), slow((3, 1))])
def test_heads(heads):
    """Kills axes that are mixed up, or dropped where they are not 1."""
    h, g = heads
    check(Call(t=70, window=16, b=1, h=h, g=g, k=3, v=6))
    check(Call(t=7, window=16, b=3, h=h, g=g, k=6, v=3, cache=True))


@pytest.mark.parametrize("t", [75, full(20)])
def test_segments(t):
    """Kills segments that are counted, not compared, and blocks that read the ids of others."""
    check(Call(t=t, window=40, segments=True, seed=1))


def test_large_scores():
    """Kills an exponential that overflows: scores up to 1e2."""
    call = Call(t=70, window=20, size=5.0, scale=0.9)
    q, k, _ = call.arrays()
    assert 100 < np.abs(call.factor * np.einsum("bihk,bjhk->bhij", q[:, :, ::2], k)).max() < 400
    check(call)


@pytest.mark.parametrize("cut", [7, slow(0), slow(8), slow(37)])
def test_prefill_in_two_calls(cut):
    """Kills a cache that is right only at its own borders. Values and gradients through both calls."""
    call = Call(t=37, window=8, cache=True, b=3)
    positions = np.asarray(call.positions, np.int32)

    @jax.jit
    def run(arrays, cotangents):
        def outputs(q, k, v, *rings):
            cache, ys = SlidingWindowCache(*rings, positions), []
            for part in (slice(0, cut), slice(cut, None)):
                y, cache = sliding_window_attention(
                    q[:, part], k[:, part], v[:, part], window=8, initial_cache=cache, return_cache=True
                )
                ys.append(y)
            return [jnp.concatenate(ys, axis=1), cache.k, cache.v]

        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    outputs, gradients = run(*([np.asarray(x, np.float32) for x in xs] for xs in (call.arrays(), call.cotangents())))
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


@pytest.mark.parametrize("cache", [full(False), True])
def test_bfloat16(cache):
    """Kills bfloat16 scores or sums, outputs or gradients of another dtype.

    Inputs and cotangents are bfloat16 numbers; weights, their cotangents and the results round by 2e-3 each, and dk and
    dv of the past once more.
    """
    call = Call(t=75, window=40, scale=2.0, cache=cache, dtype=jnp.bfloat16)
    outputs, gradients = measured(call, implementation="xla")
    expected, expected_gradients = truth(call)
    assert all(x.dtype == jnp.bfloat16 for x in (*outputs, *gradients))
    assert relative_l2(outputs[0], expected[0]) < 5e-3
    assert_close(gradients, expected_gradients, 8e-3)


def test_memory_is_linear_in_time():
    """Kills a score matrix of (t, t), saved weights of all blocks, and the scores of more than one step at a time."""
    t, window = 4096, 16
    x = np.zeros((1, t, 8, 4), np.float32)
    backward = jax.grad(lambda x: sliding_window_attention(x, x, x, window=window, implementation="xla").sum())
    sizes = [math.prod(shape) for shape in all_shapes(jax.make_jaxpr(backward)(x).jaxpr)]
    assert len(sizes) > 100
    assert max(4 * size for size in sizes) <= max(xla.STEP_BYTES, x.nbytes + 4 * 8 * 4 * window)
    assert 4 * t * 8 * 32 > 2 * xla.STEP_BYTES  # the weights of all blocks


def test_keys_per_query_counts_the_scores():
    """Kills a count that drifts from the blocks. Hand-worked: blocks of 16, 16 keys after; 20 and 40."""
    assert keys_per_query(64, 16) == 32
    assert keys_per_query(40, 16) == 3 * 16 * 32 / 40
    assert keys_per_query(100, 40) == 60
    assert keys_per_query(30, 40) == 30
    call = Call(t=100, window=40, b=1, h=1, g=1, k=2, v=2)
    q, k, v = (np.asarray(x, np.float32) for x in call.arrays())
    attend = functools.partial(sliding_window_attention, window=40, implementation="xla")
    shapes = set(all_shapes(jax.make_jaxpr(attend)(q, k, v).jaxpr))
    assert (5, 20, 60) in shapes


def test_a_window_of_all_tokens_holds_no_mask():
    """Kills a constant of t x t in the program of a single block: 256 MiB at 16384 tokens."""
    tokens = jax.ShapeDtypeStruct((1, 300, 1, 4), jnp.float32)
    text = lowered(functools.partial(sliding_window_attention, window=300, implementation="xla"), [tokens] * 3, "cpu")
    assert max(map(len, text.splitlines())) < 5_000  # a constant is one line, of at least 90,000 letters here
