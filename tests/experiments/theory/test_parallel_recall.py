"""Zoology, Algorithm 11 and Theorem H.37. Kills: a query that sees later keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.parallel_recall import attention_lookup, count, count_attention, size
from experiments.theory.circuits import compile_channels
from experiments.theory.parallel_recall import one_sort, parallel_recall
from experiments.theory.recall_circuit import build, comparators, sorter
from tests.experiments.theory.triples import draw, solve

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [21, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 64))])
def test_programs(n):
    """Kills: a query that sees its own key or a later one, the first of equal keys, a far match before a near one."""
    keys, queries = RNG.integers(0, 20, (2, n))
    values = RNG.integers(0, 1000, n)  # a key that returns may have another value
    expected = solve(keys[None], values[None], queries[None])[0]
    assert n < 20 or (min((expected == -1).sum(), (expected != -1).sum()) > 3)
    arrays = [jnp.asarray(x, jnp.int32) for x in (keys, values, queries)]
    np.testing.assert_array_equal(parallel_recall(*arrays), expected)
    np.testing.assert_array_equal(one_sort(*arrays), expected)
    np.testing.assert_array_equal(attention_lookup(*arrays, bits=5), expected)


def inputs(keys, values, queries, bits):
    """Rows of wires, as `build` orders them."""
    of = lambda x: x[..., None] >> np.arange(bits)[::-1] & 1  # noqa: E731
    return np.concatenate([of(keys), values[..., None], of(queries)], axis=-1).reshape(len(keys), -1)


def answers(outputs, n):
    """Tokens, or -1, of all triples but the first."""
    found, values = np.round(np.asarray(outputs)).reshape(len(outputs), 2, n - 1).transpose(1, 0, 2)
    return np.where(found == 1, values, -1)


@pytest.mark.parametrize("n", [4, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 16))])
def test_circuit(n):
    """Kills: a comparator that swaps equal items' wires apart, a scan that skips a key, answers in sorted order; and
    counts that are not those of the circuit."""
    bits = 3
    keys, values, queries = draw(RNG, batch_size=64, n_triples=n, n_tokens=2**bits)
    circuit = build(n, bits)
    expected = solve(keys, values, queries)[:, 1:]
    np.testing.assert_array_equal(answers(circuit(inputs(keys, values, queries, bits)), n), expected)
    counted, exact = count(n, bits), size(circuit)
    assert counted.gates == len(circuit.gates)
    assert exact.s <= counted.gates
    assert 0.75 * counted.depth <= exact.depth <= counted.depth


@pytest.mark.parametrize("n", [*(pytest.param(n, marks=pytest.mark.full) for n in (2, 4, 8)), 32])
def test_sorting_network(n):
    """Kills: a comparator that is missing: all sequences of zeros and ones, to 2^12 of them."""
    rows = RNG.integers(0, 2, (2**12, n))
    for i, j in comparators(n):
        rows[:, [i, j]] = np.sort(rows[:, [i, j]], axis=1)
    assert (np.diff(rows, axis=1) >= 0).all()


@pytest.mark.parametrize("n", [2, 2**8, 2**18])
def test_counts(n):
    """Kills: a count that grows as the square of the length, or that of attention if it does not."""
    bits = 18
    ratio = count(2 * n, bits).gates / count(n, bits).gates
    squared = count_attention(2 * n + 2, bits).gates / count_attention(n + 1, bits).gates
    assert ratio < 3 or n == 2
    assert squared > 3.5 or n == 2


@pytest.mark.full
def test_as_base_conv():
    """Theorem H.37: every answer of 4 triples through layers of BaseConv. Kills: a bit that rounding turns."""
    bits, n = 2, 4
    keys, values, queries = draw(RNG, batch_size=64, n_triples=n, n_tokens=2**bits)
    compiled = compile_channels(build(n, bits))
    x = jnp.asarray(inputs(keys, values, queries, bits), jnp.float32)
    np.testing.assert_array_equal(answers(jax.jit(compiled.__call__)(x), n), solve(keys, values, queries)[:, 1:])


@pytest.mark.full
def test_sorting_networks():
    """Kills: H.32 with a chain of bits in place of a tree, bits of two numbers exchanged one by one, a sort by the
    least significant bit."""
    for log_d in range(1, 7):
        d = 2**log_d
        found = size(sorter(2, d))
        assert found.s <= 13 * d
        assert found.w < 6 * d
        assert found.depth == 2 * log_d + 5
    n, bits = 8, 4
    x = RNG.integers(0, 2**bits, (50, n))
    wires = (x[..., None] >> np.arange(bits)[::-1] & 1).reshape(50, -1)
    found = sorter(n, bits)(wires).reshape(50, n, bits) @ 2 ** np.arange(bits)[::-1]
    np.testing.assert_array_equal(found, np.sort(x, axis=1))
    for p in (2, 3, 5):
        assert len(list(comparators(2**p))) == (p * p - p + 4) * 2 ** (p - 2) - 1
