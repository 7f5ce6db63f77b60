"""Compositional MQAR: examples, laws, the split, and an oracle that only reads."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks import compositional_mqar
from jaxzoo.tasks.compositional_mqar import NEUTRAL, CompositionalMQARConfig

CONFIGS = {
    "default": CompositionalMQARConfig(),
    "zero": CompositionalMQARConfig(vocab_size=60, length=35, n_pairs=4, fillers="zero"),
    "nine": CompositionalMQARConfig(vocab_size=48, length=54, n_pairs=9),
    "smallest": CompositionalMQARConfig(vocab_size=10, length=24, n_pairs=4, fillers="zero"),
}
parametrize_configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@functools.cache
def make(config, n=300, seed=0, split="train"):
    batch = config.labelled(seed, np.arange(n), split)
    return tuple(np.asarray(part) for part in (batch.tokens, batch.positions, batch.targets))


def context_of(tokens, config):
    """First keys, second keys and values, `(b, n_pairs)` each."""
    triples = tokens[:, : config.context_length].reshape(len(tokens), config.n_pairs, 3)
    return triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]


def assert_law(counts, probabilities):
    """Chi-square: the statistic has mean k - 1 and variance 2 (k - 1); six deviations are beyond chance."""
    expected = probabilities / probabilities.sum() * counts.sum()
    assert expected.min() > 5
    statistic, dof = ((counts - expected) ** 2 / expected).sum(), counts.size - 1
    assert statistic < dof + 6 * math.sqrt(2 * dof)


@parametrize_configs
@pytest.mark.parametrize("split", ["train", "test"])
def test_layout_of_every_example(config, split):
    """Kills: a pair that is missing or stands twice, a value bound to two pairs, a query that is missing, torn, or
    labelled at its first key or with another pair's value, tokens of another third."""
    third, size = config.vocab_size // 3, config.grid_size
    tokens, positions, targets = make(config, split=split)
    assert tokens.shape == (300, config.length)
    assert positions.shape == targets.shape == (300, config.n_pairs)
    assert tokens.dtype == positions.dtype == targets.dtype == np.int32
    for example, asked, answers in zip(tokens.tolist(), positions.tolist(), targets.tolist(), strict=True):
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


@parametrize_configs
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_is_right_and_labels_of_other_examples_are_chance(config, split):
    """Kills a label that reading cannot give, and an accuracy that is high for any labels."""
    tokens, positions, targets = make(config, split=split)
    predictions = compositional_mqar.oracle(tokens, config)
    np.testing.assert_array_equal(np.take_along_axis(predictions, positions, axis=1), targets)
    if config.fillers == "zero":
        assert (predictions != UNLABELLED).sum() == targets.size
    chance = 1 / config.n_values
    assert abs((targets == np.roll(targets, 1, axis=0)).mean() - chance) < 5 * math.sqrt(chance / targets.size)


@parametrize_configs
def test_one_key_alone_leaves_as_many_values_as_there_are_keys(config):
    """Kills a grid with a hole: whoever reads one key of a query has g values to choose from, by either key."""
    firsts, seconds, values = context_of(make(config)[0], config)
    for keys in (firsts, seconds):
        for row, of_row in zip(keys.tolist(), values.tolist(), strict=True):
            bound = [{v for k, v in zip(row, of_row, strict=True) if k == key} for key in set(row)]
            assert [len(each) for each in bound] == [config.grid_size] * config.grid_size


def test_the_oracle_reads_the_worked_example():
    """Kills an oracle that echoes the generator: the example of the module docstring, with A, B for 1, 2, X, Y for
    20, 21 and values from 40 on."""
    config = CompositionalMQARConfig(vocab_size=60, length=24, n_pairs=4)
    context = [2, 20, 41, 1, 20, 48, 2, 21, 49, 1, 21, 42]
    tokens = [*context, 1, 20, 0, 2, 21, 0, 1, 21, 0, 2, 20, 0]
    expected = [-100] * 13 + [48, -100, -100, 49, -100, -100, 42, -100, -100, 41, -100]
    np.testing.assert_array_equal(compositional_mqar.oracle(np.array([tokens]), config), [expected])


@pytest.mark.parametrize("split", ["train", "test"])
def test_keys_values_and_the_order_of_the_pairs_are_uniform(split):
    """Kills: pairs in the order of the grid, a split that shows in one token or in the order of two values."""
    config = CompositionalMQARConfig(vocab_size=36, length=27, n_pairs=4)
    firsts, seconds, values = context_of(make(config, 12_000, 3, split)[0], config)
    for pair in range(config.n_pairs):
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


def test_slots_follow_the_law_of_the_gap():
    """Kills: an exponent off by one, slots of another width, a law that starts elsewhere, slots sorted by pair."""
    config = CompositionalMQARConfig(vocab_size=60, length=38, n_pairs=4)
    _, positions, _ = make(config, 20_000)
    slots = (positions - config.context_length - 1) // 3
    assert config.n_slots == 8
    law = np.arange(1.0, 9) ** (config.power - 1)
    assert_law(np.bincount(slots[:, 0], minlength=8), law)
    rng = np.random.default_rng(1)
    reference = np.stack([rng.choice(8, 4, replace=False, p=law / law.sum()) for _ in range(20_000)])
    for pair in (1, 3):
        ours, numpys = (np.bincount(drawn[:, pair], minlength=8) for drawn in (slots, reference))
        assert ((ours - numpys) ** 2 / (ours + numpys)).sum() < 7 + 6 * math.sqrt(14)


def test_fillers_are_any_token():
    """Kills fillers of one third of the vocabulary, or without 0, or over a query."""
    config = CompositionalMQARConfig(vocab_size=36, length=27, n_pairs=4)
    tokens, positions, _ = make(config, 12_000, 3)
    empty = np.ones(tokens.shape, bool)
    empty[:, : config.context_length] = False
    for before in (0, 1):
        np.put_along_axis(empty, positions - before, False, axis=1)
    assert_law(np.bincount(tokens[empty], minlength=36), np.ones(36))


@parametrize_configs
def test_splits_are_even_and_odd(config):
    """Kills a swap in the wrong direction, or of values that the targets do not follow."""
    for split, odd in (("train", 0), ("test", 1)):
        values = context_of(make(config, split=split)[0], config)[2] - config.first_value
        inversions = np.triu(values[:, :, None] > values[:, None, :], 1).sum((1, 2))
        assert ((inversions + values.sum(1)) % 2 == odd).all()


def test_no_example_is_in_both_splits():
    """Kills leakage where it is likeliest: so few contexts exist that each split is seen nearly whole."""
    config = CONFIGS["smallest"]
    contexts = [
        {row[: config.context_length].tobytes() for row in make(config, 40_000, 0, split)[0]}
        for split in ("train", "test")
    ]
    assert not contexts[0] & contexts[1]
    assert [len(each) for each in contexts] == [3 * math.factorial(4) * math.factorial(4) // 2] * 2


@parametrize_configs
def test_an_example_is_a_function_of_its_number(config):
    """Kills examples that depend on their batch, or not on their seed."""
    whole = make(config)
    part = config.labelled(0, np.array([7, 2]))
    for all_of_them, some in zip(whole, (part.tokens, part.positions, part.targets), strict=True):
        np.testing.assert_array_equal(all_of_them[[7, 2]], some)
    assert (make(config, seed=1)[0] != whole[0]).any(1).mean() > 0.99


def test_sizes_and_splits_draw_apart():
    """Kills equal random numbers under another size or split: keys at equal places agree by chance alone."""
    base = make(CONFIGS["default"])[0][:, :12]
    tokens = [make(dataclasses.replace(CONFIGS["default"], **fields))[0] for fields in ({"length": 66}, {"n_pairs": 9})]
    for other in [*tokens, make(CONFIGS["default"], split="test")[0]]:
        assert (other[:, :12] == base).mean() < 0.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_pairs": 1}, "n_pairs=1 must be a square and at least 4: .*; take 4"),
        ({"n_pairs": 10}, "n_pairs=10 must be a square .*; take 9"),
        ({"n_pairs": 16}, "length=64 must be at least 6 n_pairs=96; raise length or lower n_pairs"),
        ({"vocab_size": 9}, "vocab_size=9 must have 4 values in its last third, has 3; take 12 or more"),
        ({"power": 0.0}, "power=0.0 must be positive"),
        ({"power": 23.0}, "power=23.0 must be smaller: in float32 it gives some slots no chance"),
        ({"fillers": "random"}, "fillers='random' must be one of 'zero', 'any'"),
    ],
)
def test_config_errors(fields, message):
    """Kills a task that has no examples, and a message that names the wrong field."""
    with pytest.raises(ValueError, match=f"^CompositionalMQARConfig.{message}"):
        CompositionalMQARConfig(**fields)
