"""Random draws against enumeration. Kills: a draw that prefers some outcomes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.tasks import random_draws
from tests.tasks.examples import assert_law


def draw(function, n_draws: int) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(function))(jax.random.split(jax.random.key(0), n_draws)))


def draw_words(function, n_draws: int, n_words: int) -> np.ndarray:
    words = jax.random.bits(jax.random.key(1), (n_draws, n_words), jnp.uint32)
    return np.asarray(jax.jit(jax.vmap(function))(words))


def tuple_counts(rows: np.ndarray, tuples: list[tuple[int, ...]]) -> np.ndarray:
    found, counts = np.unique(rows, axis=0, return_counts=True)
    by_tuple = dict(zip(map(tuple, found.tolist()), counts.tolist(), strict=True))
    assert set(by_tuple) <= set(tuples)
    return np.array([by_tuple.get(t, 0) for t in tuples])


@pytest.mark.parametrize(
    ("n", "size"),
    [(2, 5), (3, 4), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((2, 4), (3, 6), (4, 4), (1, 2)))],
)
def test_distinct_tuples_are_equally_likely(n, size):
    """Kills: a redraw that favours some tuple: one that sorts, or counts up to the next free integer."""
    tuples = list(itertools.permutations(range(size), n))
    counts = tuple_counts(draw(lambda key: random_draws.distinct(key, n, size), 200 * len(tuples)), tuples)
    assert_law(counts, np.ones(len(tuples)))


@pytest.mark.parametrize(
    "excluded", [[4, 3, 0], *(pytest.param(e, marks=pytest.mark.full) for e in ([7], [7, 1, 6, 2], [0, 1, 2, 3]))]
)
def test_below_except_is_uniform_over_the_rest(excluded):
    """Kills: an off-by-one in the ranks, unsorted exclusions, and a skip that piles up after them."""
    items = draw_words(lambda words: random_draws.below_except(words, 8, jnp.array(excluded)), 2000, 7)
    counts = np.bincount(items.ravel(), minlength=8)
    assert not counts[excluded].any()
    rest = np.setdiff1d(np.arange(8), excluded)
    assert_law(counts[rest], np.ones(rest.size))


@pytest.mark.parametrize("n", [6, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 3, 9))])
def test_odd_order_is_the_sign_of_the_permutation(n):
    """Kills: a parity of something else (descents, fixed points): the determinant of the matrix knows the
    sign."""
    rng = np.random.default_rng(n)
    permutations = np.stack([rng.permutation(n) for _ in range(40)])
    signs = np.array([np.linalg.det(np.eye(n)[permutation]) for permutation in permutations])
    odd = jax.jit(jax.vmap(random_draws.is_odd_order))(3 * permutations + 1)
    np.testing.assert_array_equal(odd, signs < 0)
