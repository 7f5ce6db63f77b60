"""Word problems of permutations. Kills: products in the wrong order."""

import itertools
import math

import numpy as np
import pytest

from jaxzoo.tasks.permutations import PermutationsConfig, preset
from tests.tasks.examples import N, assert_refused, make, parametrize_small


def swapped(word, n):
    """Whether a move is the identity or exchanges two objects."""
    return sum(i != j for i, j in enumerate(list(itertools.permutations(range(n)))[word])) <= 2


@parametrize_small("permutations")
@pytest.mark.parametrize("split", ["train", "test"])
def test_products_by_matrices(config, split):
    """Kills: products in the other order, an inverse, a product without its last move, moves that are no swaps, or not
    all of them, a sequence in the wrong split."""
    tokens, positions, targets = make(config, split=split)
    n = config.n_objects
    matrices = np.stack([np.eye(n, dtype=int)[list(p)].T for p in itertools.permutations(range(n))])
    assert (positions == np.arange(config.length)).all()
    state = np.broadcast_to(np.eye(n, dtype=int), (N, n, n))
    for place in range(config.length):
        state = matrices[tokens[:, place]] @ state
        np.testing.assert_array_equal(state, matrices[targets[:, place]])
    moves = [word for word in range(config.vocab_size) if config.moves == "all" or swapped(word, n)]
    assert set(np.unique(tokens)) == set(moves)
    number = np.vectorize({word: i for i, word in enumerate(moves)}.get)(tokens)
    assert ((number[:, 1:] & number[:, :-1] & 1).sum(1) % 2 == (split == "test")).all()


@pytest.mark.full
def test_chance_is_what_the_docstring_says():
    """Kills: answers that favour an arrangement, and moves that are not equally likely."""
    for n_objects, moves in ((3, "all"), (4, "swaps")):
        config = preset(n_objects, 40, moves)
        tokens, _, targets = make(config)
        last = np.bincount(targets[:, -1], minlength=config.vocab_size)
        assert abs(last / N - 1 / config.vocab_size).max() < 5 * math.sqrt(1 / config.vocab_size / N)
        shares = np.bincount(tokens.ravel(), minlength=config.vocab_size) / tokens.size
        shares = shares[shares > 0]
        assert abs(shares - 1 / shares.size).max() < 0.01


def test_config_errors():
    """Kills: a group that has no task, and too small a vocabulary."""
    cases = [
        ({"n_objects": 6, "vocab_size": 720}, r"n_objects=6 must be in \[2, 5\]"),
        ({"n_objects": 4}, "vocab_size=6 must be 24: the permutations of 4"),
        ({"length": 3}, "length=3 must be at least 4"),
        ({"moves": "cycles"}, "moves='cycles' must be"),
    ]
    assert_refused(PermutationsConfig, cases)
