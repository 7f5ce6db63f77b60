"""Compositional MQAR. Kills: a value bound to two pairs, a split that a token reveals."""

import itertools
import math

import numpy as np
import pytest

from jaxzoo.tasks.compositional_mqar import NEUTRAL, CompositionalMQARConfig
from tests.tasks.examples import SMALL, assert_law, assert_refused, make

CONFIGS = {
    "small": SMALL["compositional"],
    "default": CompositionalMQARConfig(),
    "nine": CompositionalMQARConfig(vocab_size=48, length=54, n_pairs=9),
}
parametrize_configs = pytest.mark.parametrize(
    "config",
    [pytest.param(c, id=name, marks=[] if name == "small" else pytest.mark.full) for name, c in CONFIGS.items()],
)


def context_of(tokens, config):
    """First keys, second keys and values, `(b, n_pairs)` each."""
    triples = tokens[:, : config.context_length].reshape(len(tokens), config.n_pairs, 3)
    return triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]


@parametrize_configs
def test_layout_of_every_example(config):
    """Kills: a pair that is missing or stands twice, a value bound to two pairs, a query that is missing, torn, or
    labelled at its first key or with another pair's value, tokens of another third; a grid with a hole, so that
    one key leaves fewer than g values; a swap in the wrong direction, or of values that the targets do not follow."""
    for split in ("train", "test"):
        third, size = config.vocab_size // 3, config.grid_size
        tokens, positions, targets = make(config, split=split)
        for example, asked, answers in zip(
            tokens[:300].tolist(), positions[:300].tolist(), targets[:300].tolist(), strict=True
        ):
            triples = [tuple(example[i : i + 3]) for i in range(0, config.context_length, 3)]
            firsts, seconds, values = (set(part) for part in zip(*triples, strict=True))
            assert (len(firsts), len(seconds), len(values)) == (size, size, config.n_pairs)
            assert all(1 <= first < third for first in firsts)
            assert all(third <= second < 2 * third for second in seconds)
            assert all(2 * third <= value < config.vocab_size for value in values)
            assert {(a, x) for a, x, _ in triples} == set(itertools.product(firsts, seconds))
            assert all(p > config.context_length and (p - config.context_length) % 3 == 1 for p in asked)
            queries = [(example[p - 1], example[p], v) for p, v in zip(asked, answers, strict=True)]
            assert queries == triples
            taken = {*asked, *(p - 1 for p in asked), *range(config.context_length)}
            rest = [token for t, token in enumerate(example) if t not in taken]
            assert config.fillers == "any" or set(rest) <= {NEUTRAL}
        values = context_of(tokens, config)[2] - config.first_value
        inversions = np.triu(values[:, :, None] > values[:, None, :], 1).sum((1, 2))
        assert ((inversions + values.sum(1)) % 2 == (split == "test")).all()


LAWS = CompositionalMQARConfig(vocab_size=36, length=32, n_pairs=4)


@pytest.mark.full
@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=pytest.mark.full)])
def test_keys_values_and_the_order_of_the_pairs_are_uniform(split):
    """Kills: pairs in the order of the grid, a split that shows in one token or in the order of two values."""
    firsts, seconds, values = context_of(make(LAWS, 12_000, 3, split).tokens, LAWS)
    for pair in range(LAWS.n_pairs):
        assert_law(np.bincount(firsts[:, pair], minlength=12)[1:], np.ones(11))
        assert_law(np.bincount(seconds[:, pair] - 12, minlength=12), np.ones(12))
        assert_law(np.bincount(values[:, pair] - 24, minlength=12), np.ones(12))
    larger = (firsts == firsts.max(1, keepdims=True)) @ np.array([1, 2, 4, 8])
    above = (seconds == seconds.max(1, keepdims=True)) @ np.array([1, 2, 4, 8])
    grids = [
        (sum(1 << i for i, c in enumerate(cells) if c // 2), sum(1 << i for i, c in enumerate(cells) if c % 2))
        for cells in itertools.permutations(range(4))
    ]
    codes = np.array([16 * a + b for a, b in grids])
    assert_law(np.bincount(16 * larger + above, minlength=256)[codes], np.ones(24))
    for left, right in itertools.combinations(range(4), 2):
        assert abs((values[:, left] < values[:, right]).mean() - 0.5) < 0.025
    assert abs(((firsts[:, 0] + values[:, 0]) % 2).mean() - (6 * 6 + 5 * 6) / (11 * 12)) < 0.025


@pytest.mark.full
def test_each_split_has_half_of_all_contexts():
    """Kills: leakage where it is likeliest: so few contexts exist that each split is seen wholly."""
    config = CONFIGS["small"]
    contexts = [
        {row[: config.context_length].tobytes() for row in make(config, 40_000, 0, split).tokens}
        for split in ("train", "test")
    ]
    assert not contexts[0] & contexts[1]
    assert [len(each) for each in contexts] == [3 * math.factorial(4) * math.factorial(4) // 2] * 2


def test_config_errors():
    """Kills: a task that has no examples, and a message that names the wrong field."""
    cases = [
        ({"n_pairs": 1}, "n_pairs=1 must be a square and at least 4: .*; take 4"),
        ({"n_pairs": 10}, "n_pairs=10 must be a square .*; take 9"),
        ({"n_pairs": 16}, "length=64 must be at least 6 n_pairs=96; raise length or lower n_pairs"),
        ({"vocab_size": 9}, "vocab_size=9 must have 4 values in its last third, has 3; take 12 or more"),
        ({"vocab_size": 8, "length": 24}, "vocab_size=8 must have 2 first keys, has 1; take 12 or more"),
        ({"power": 0.0}, "power=0.0 must be positive"),
        ({"power": 23.0}, "power=23.0 must be smaller: in float32 some slots have probability 0"),
        ({"fillers": "random"}, "fillers='random' must be one of 'zero', 'any'"),
    ]
    assert_refused(CompositionalMQARConfig, cases)
