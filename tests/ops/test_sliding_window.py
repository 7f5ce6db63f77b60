"""Sliding window attention against a quadratic float64 reference with a hand-written gradient."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.sliding_window import (
    SlidingWindowCache,
    empty_cache,
    keys_per_query,
    sliding_window_attention,
    sliding_window_step,
)

HEADS, KV_HEADS, K, V = 4, 2, 5, 3
POSITIONS = (0, 2, 7, 41)

SHAPES = [(9, 1), (40, 1), (1, 5), (3, 5), (33, 5), (64, 16), (75, 40), (121, 33)]
"""(tokens, window): single blocks, several blocks with one or two behind, whole and ragged last ones."""


def one_head(q, k, v, dy, window, scale):
    """Outputs of the queries of the last tokens, and the gradients of sum(dy * y) to q, k, v."""
    distance = np.arange(len(k) - len(q), len(k))[:, None] - np.arange(len(k))[None]
    scores = np.where((distance >= 0) & (distance < window), q @ k.T * scale, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dy @ v.T
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    return p @ v, ds @ k, ds.T @ q, p.T @ dy


def reference(q, k, v, dy, window, scale):
    """`one_head` for a row of `(t, heads, width)` arrays; key/value heads serve query heads in order."""
    y, dq, dk, dv = np.zeros(dy.shape), np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for i in range(HEADS):
        j = i // (HEADS // KV_HEADS)
        y[:, i], dq[:, i], head_dk, head_dv = one_head(q[:, i], k[:, j], v[:, j], dy[:, i], window, scale)
        dk[:, j] += head_dk
        dv[:, j] += head_dv
    return y, dq, dk, dv


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def to_jax(*arrays, dtype=jnp.float32):
    return tuple(jnp.asarray(x, dtype) for x in arrays)


def tokens(t, batch=4):
    """q, k, v and a cotangent of y, float64; one row for each of POSITIONS."""
    return tuple(
        random(i, batch, t, h, d) for i, (h, d) in enumerate([(HEADS, K), (KV_HEADS, K), (KV_HEADS, V), (HEADS, V)])
    )


def pasts():
    """Keys and values of each row's past, one row for each of POSITIONS."""
    return [(random(10 + p, p, KV_HEADS, K), random(90 + p, p, KV_HEADS, V)) for p in POSITIONS]


def ring(past, window, seed):
    """A ring written token by token over garbage that no query may see."""
    slots = random(seed, window, *past.shape[1:])
    for p, entry in enumerate(past):
        slots[p % window] = entry
    return slots


def cache_of(rows, window, dtype=jnp.float32):
    k, v = (np.stack([ring(row[i], window, seed=200 + i) for row in rows]) for i in (0, 1))
    return SlidingWindowCache(*to_jax(k, v, dtype=dtype), jnp.asarray([len(row[0]) for row in rows], jnp.int32))


def pull_back_ring(dentries, dring, past):
    """Gradients of one row to its new entries and to the ring before them.

    `dentries` is what the queries sent to each entry, past ones first; `dring` what the ring after the call
    sends to the entries that it holds.
    """
    dentries, dold = dentries.copy(), np.zeros(dring.shape)
    for slot in range(len(dring)):
        holder = max((p for p in range(len(dentries)) if p % len(dring) == slot), default=-1)
        if holder < past:
            dold[slot] += dring[slot]
        else:
            dentries[holder] += dring[slot]
    for p in range(max(0, past - len(dring)), past):
        dold[p % len(dring)] += dentries[p]
    return dentries[past:], dold


@pytest.mark.parametrize(("t", "window"), SHAPES)
def test_values_and_gradients(t: int, window: int) -> None:
    """Kills: off-by-one windows, lost or doubled blocks, mixed-up head groups, a wrong scale."""
    q, k, v, dy = tokens(t, batch=2)

    @jax.jit
    def run(q, k, v, dy):
        y, vjp = jax.vjp(functools.partial(sliding_window_attention, window=window, scale=0.7), q, k, v)
        return y, vjp(dy)

    y, gradients = run(*to_jax(q, k, v, dy))
    for row in range(2):
        expected, *expected_gradients = reference(q[row], k[row], v[row], dy[row], window, scale=0.7)
        np.testing.assert_allclose(y[row], expected, atol=1e-5)
        for gradient, truth in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(gradient[row], truth, atol=1e-4)


@pytest.mark.parametrize(("t", "window"), SHAPES)
def test_from_a_cache(t: int, window: int) -> None:
    """Kills: history misplaced by a slot, unwritten slots seen, rows that share a position, gradients that do
    not reach the cache or come through it doubled."""
    q, k, v, dy = tokens(t)
    rows = pasts()
    cache = cache_of(rows, window)
    dcache = to_jax(random(300, *cache.k.shape), random(301, *cache.v.shape))

    def run(q, k, v, cache_k, cache_v):
        start = cache._replace(k=cache_k, v=cache_v)
        y, after = sliding_window_attention(q, k, v, window=window, initial_cache=start, return_cache=True)
        return y, after.k, after.v

    @jax.jit
    def run_and_pull_back(arguments, cotangents):
        outputs, vjp = jax.vjp(run, *arguments)
        return outputs, vjp(cotangents)

    (y, after_k, after_v), (dq, dk, dv, dcache_k, dcache_v) = run_and_pull_back(
        (*to_jax(q, k, v), cache.k, cache.v), (*to_jax(dy), *dcache)
    )
    for row, (past_k, past_v) in enumerate(rows):
        past = len(past_k)
        all_k, all_v = np.concatenate([past_k, k[row]]), np.concatenate([past_v, v[row]])
        expected, expected_dq, dall_k, dall_v = reference(q[row], all_k, all_v, dy[row], window, K**-0.5)
        np.testing.assert_allclose(y[row], expected, atol=1e-5)
        np.testing.assert_allclose(dq[row], expected_dq, atol=1e-4)
        for after, dnew, dold, dall, dring, truth, seed in (
            (after_k, dk, dcache_k, dall_k, dcache[0], all_k, 200),
            (after_v, dv, dcache_v, dall_v, dcache[1], all_v, 201),
        ):
            np.testing.assert_array_equal(after[row], np.float32(ring(truth, window, seed)))
            expected_dnew, expected_dold = pull_back_ring(dall, np.asarray(dring[row]), past)
            np.testing.assert_allclose(dnew[row], expected_dnew, atol=1e-4)
            np.testing.assert_allclose(dold[row], expected_dold, atol=1e-4)


@pytest.mark.parametrize("window", [1, 4, 7])
def test_steps_wrap_the_ring(window: int) -> None:
    """Kills: a slot one off, a step that sees unwritten slots or not itself, a position that stands still."""
    t = 19
    q, k, v, dy = tokens(t)
    rows = pasts()
    cache = cache_of(rows, window)
    step, outputs = jax.jit(sliding_window_step), []
    for i in range(t):
        y, cache = step(cache, *to_jax(q[:, i], k[:, i], v[:, i]))
        outputs.append(y)
    for row, (past_k, past_v) in enumerate(rows):
        all_k, all_v = np.concatenate([past_k, k[row]]), np.concatenate([past_v, v[row]])
        expected = reference(q[row], all_k, all_v, dy[row], window, K**-0.5)[0]
        np.testing.assert_allclose(np.stack(outputs, axis=1)[row], expected, atol=1e-5)
        np.testing.assert_array_equal(cache.k[row], np.float32(ring(all_k, window, seed=200)))
    np.testing.assert_array_equal(cache.position, np.array(POSITIONS) + t)


def test_no_tokens_change_nothing() -> None:
    cache = cache_of(pasts(), window=5)
    y, after = sliding_window_attention(*to_jax(*tokens(0)[:3]), window=5, initial_cache=cache, return_cache=True)
    assert y.shape == (len(POSITIONS), 0, HEADS, V)
    jax.tree.map(np.testing.assert_array_equal, after, cache)


def test_bfloat16() -> None:
    """Kills: bfloat16 scores or sums, outputs or gradients of another dtype.

    The inputs are bfloat16 numbers; weights, their cotangents and the results round by 2e-3 each.
    """

    @jax.jit
    def run(q, k, v, dy):
        y, vjp = jax.vjp(functools.partial(sliding_window_attention, window=40, scale=2.0), q, k, v)
        return y, *vjp(dy)

    arguments = to_jax(*tokens(75, batch=2), dtype=jnp.bfloat16)
    results = run(*arguments)
    truths = [reference(*(np.float64(x[row]) for x in arguments), 40, 2.0) for row in range(2)]
    for result, *truth in zip(results, *truths, strict=True):
        assert result.dtype == jnp.bfloat16
        error = np.linalg.norm(np.float64(result) - np.stack(truth)) / np.linalg.norm(truth)
        assert error < 8e-3


def test_narrow_cache_does_not_show_where_calls_were_cut() -> None:
    """Kills: a call that uses its own keys unrounded (1e-3 off) where later ones read them from the cache."""
    q, k, v = to_jax(*tokens(9)[:3])
    start = cache_of(pasts(), window=5, dtype=jnp.bfloat16)
    prefill = jax.jit(functools.partial(sliding_window_attention, window=5, return_cache=True))
    whole, end = prefill(q, k, v, initial_cache=start)
    first, cache = prefill(q[:, :4], k[:, :4], v[:, :4], initial_cache=start)
    step, outputs = jax.jit(sliding_window_step), [first]
    for i in range(4, 9):
        y, cache = step(cache, q[:, i], k[:, i], v[:, i])
        outputs.append(y[:, None])
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), whole, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, cache, end)


def test_memory_is_linear_in_time() -> None:
    """Kills: a score matrix of (t, t), in the pass forward or backward."""
    t, window = 4096, 16
    x = jnp.zeros((1, t, 1, 4))
    backward = jax.grad(lambda x: sliding_window_attention(x, x, x, window=window).sum())
    memory = jax.jit(backward).lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * t * t / 8


def test_keys_per_query_counts_the_scores() -> None:
    """Kills: a count that drifts from the blocks. Hand-worked: blocks of 16, 16 keys behind; 20 and 40."""
    assert keys_per_query(64, 16) == 32
    assert keys_per_query(40, 16) == 3 * 16 * 32 / 40
    assert keys_per_query(100, 40) == 60
    assert keys_per_query(30, 40) == 30


@pytest.mark.parametrize(
    ("window", "slots", "kv_heads", "message"),
    [
        (0, None, 2, "window=0 must be at least 1"),
        (4, 5, 2, "initial_cache has 5 slots, must be window=4"),
        (4, None, 3, "4 query heads must be a multiple of 3"),
    ],
)
def test_errors(window: int, slots: int | None, kv_heads: int, message: str) -> None:
    q, k = jnp.zeros((1, 2, 4, 6)), jnp.zeros((1, 2, kv_heads, 6))
    cache = None if slots is None else empty_cache(1, slots, kv_heads, 6, 6)
    with pytest.raises(ValueError, match=message):
        sliding_window_attention(q, k, k, window=window, initial_cache=cache)


def test_return_cache_without_initial_cache_starts_empty() -> None:
    """Kills: a first call that drops its keys, or a ring whose order depends on how it was filled."""
    q, k, v = to_jax(*tokens(11)[:3])
    run = jax.jit(functools.partial(sliding_window_attention, window=4, return_cache=True))
    _, cache = run(q, k, v)
    for (name, new), row in itertools.product((("k", k), ("v", v)), range(len(POSITIONS))):
        np.testing.assert_array_equal(getattr(cache, name)[row], np.asarray(new[row])[[8, 9, 10, 7]])
    np.testing.assert_array_equal(cache.position, 11)
