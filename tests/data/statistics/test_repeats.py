"""Distances of repeated n-grams against a slow count. Kills: a repeat across segments."""

import itertools

import numpy as np
import pytest

from jaxzoo.data.statistics.repeats import repeat_distances
from tests.data import recall_reference


def test_worked_by_hand():
    """Kills: distance to the first instead of the last occurrence, overlaps left out, off by one."""
    #           a  b  c  a  b  a  b  c
    row = [[1, 2, 3, 1, 2, 1, 2, 3]]
    assert repeat_distances(np.array(row), 1).tolist() == [[0, 0, 0, 3, 3, 2, 2, 5]]
    assert repeat_distances(np.array(row), 2).tolist() == [[0, 0, 0, 0, 3, 0, 2, 5]]
    assert repeat_distances(np.array(row), 3).tolist() == [[0, 0, 0, 0, 0, 0, 0, 5]]
    assert repeat_distances(np.array([[7, 7, 7, 7]]), 2).tolist() == [[0, 0, 1, 1]]


def test_segments_worked_by_hand():
    """Kills: a repeat across segments, or of a bigram that straddles a border."""
    tokens = np.array([[1, 2, 1, 2, 1, 2, 1, 2]])
    segments = np.array([[5, 5, 5, 8, 8, 8, 8, 8]])
    #    pairs        12 21 x  21 12 21 12
    assert repeat_distances(tokens, 2, segments).tolist() == [[0, 0, 0, 0, 0, 0, 2, 2]]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_equals_the_reference(n):
    """Kills: a key of the sort that is left out, mixed-up rows."""
    sizes = itertools.product([1, 2, 5, 40, 2**32], [False, True], [(3, 1), (1, 4), (4, 67), (2, 200)])
    for n_ids, segmented, (b, t) in sizes:
        rng = np.random.default_rng(n * 100 + n_ids % 97 + t)
        pool = rng.integers(0, n_ids, 30)
        pool[0] = n_ids - 1
        tokens = rng.choice(pool, (b, t))
        segments = np.sort(rng.integers(-2, 4, (b, t)), axis=1) if segmented else None
        expected = recall_reference.repeat_distances(
            tokens.tolist(), n, segments.tolist() if segments is not None else None
        )
        np.testing.assert_array_equal(repeat_distances(tokens, n, segments), expected)
