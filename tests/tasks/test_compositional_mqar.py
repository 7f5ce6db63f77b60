"""Compositional MQAR: examples, laws and the split."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from jaxzoo.tasks.compositional_mqar import NEUTRAL, CompositionalMQARConfig
from tests.tasks.examples import SMALL, assert_law, assert_refused, assert_same_law, make
from tests.tasks.oracles import oracle

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


def test_the_oracle_reads_the_worked_example():
    """Kills an oracle that echoes the generator: the example of the module docstring, with A, B for 1, 2, X, Y for
    20, 21 and values from 40 on."""
    config = CompositionalMQARConfig(vocab_size=60, length=24, n_pairs=4)
    context = [2, 20, 41, 1, 20, 48, 2, 21, 49, 1, 21, 42]
    tokens = [*context, 1, 20, 0, 2, 21, 0, 1, 21, 0, 2, 20, 0]
    expected = [-100] * 13 + [48, -100, -100, 49, -100, -100, 42, -100, -100, 41, -100]
    np.testing.assert_array_equal(oracle(np.array([tokens]), config), [expected])


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
def test_slots_follow_the_law_of_the_gap():
    """Kills: an exponent off by one, slots of another width, a law that starts elsewhere, slots sorted by pair."""
    positions, n = make(LAWS, 12_000, 3).positions, 12_000
    slots = (positions - LAWS.context_length - 1) // 3
    assert LAWS.n_slots == 6
    law = np.arange(1.0, 7) ** (LAWS.power - 1)
    assert_law(np.bincount(slots[:, 0], minlength=6), law)
    rng = np.random.default_rng(1)
    reference = np.stack([rng.choice(6, 4, replace=False, p=law / law.sum()) for _ in range(n)])
    for pair in (1, 3):
        assert_same_law(*(np.bincount(drawn[:, pair], minlength=6) for drawn in (slots, reference)))


@pytest.mark.full
def test_fillers_are_any_token():
    """Kills fillers of one third of the vocabulary, or without 0, or over a query."""
    tokens, positions, _ = make(LAWS, 12_000, 3)
    empty = np.ones(tokens.shape, bool)
    empty[:, : LAWS.context_length] = False
    for before in (0, 1):
        np.put_along_axis(empty, positions - before, False, axis=1)
    assert_law(np.bincount(tokens[empty], minlength=36), np.ones(36))


@pytest.mark.full
def test_each_split_has_half_of_all_contexts():
    """Kills leakage where it is likeliest: so few contexts exist that each split is seen wholly."""
    config = CONFIGS["small"]
    contexts = [
        {row[: config.context_length].tobytes() for row in make(config, 40_000, 0, split).tokens}
        for split in ("train", "test")
    ]
    assert not contexts[0] & contexts[1]
    assert [len(each) for each in contexts] == [3 * math.factorial(4) * math.factorial(4) // 2] * 2


@pytest.mark.full
def test_sizes_and_splits_draw_apart():
    """Kills equal random numbers under another size or split: keys at equal places agree by chance alone."""
    base = make(CONFIGS["default"]).tokens[:, :12]
    others = [make(dataclasses.replace(CONFIGS["default"], length=66)), make(CONFIGS["default"], split="test")]
    for other in others:
        assert (other.tokens[:, :12] == base).mean() < 0.01


def test_config_errors():
    """Kills a task that has no examples, and a message that names the wrong field."""
    cases = [
        ({"n_pairs": 1}, "n_pairs=1 must be a square and at least 4: .*; take 4"),
        ({"n_pairs": 10}, "n_pairs=10 must be a square .*; take 9"),
        ({"n_pairs": 16}, "length=64 must be at least 6 n_pairs=96; raise length or lower n_pairs"),
        ({"vocab_size": 9}, "vocab_size=9 must have 4 values in its last third, has 3; take 12 or more"),
        ({"vocab_size": 8, "length": 24}, "vocab_size=8 must have 2 first keys, has 1; take 12 or more"),
        ({"power": 0.0}, "power=0.0 must be positive"),
        ({"power": 23.0}, "power=23.0 must be smaller: in float32 it gives some slots no chance"),
        ({"fillers": "random"}, "fillers='random' must be one of 'zero', 'any'"),
    ]
    assert_refused(CompositionalMQARConfig, cases)
