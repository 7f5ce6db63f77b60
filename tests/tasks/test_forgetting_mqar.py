"""Forgetting MQAR: examples, laws, the split, and an oracle that only reads."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks import forgetting_mqar
from jaxzoo.tasks.forgetting_mqar import NEUTRAL, ForgettingMQARConfig

CONFIGS = {
    "default": ForgettingMQARConfig(),
    "zero": ForgettingMQARConfig(vocab_size=40, length=24, n_pairs=4, n_updates=2, fillers="zero"),
    "all-again": ForgettingMQARConfig(vocab_size=33, length=32, n_pairs=4, n_updates=4),
    "full": ForgettingMQARConfig(vocab_size=31, length=30, n_pairs=7, n_updates=1),
}
parametrize_configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@functools.cache
def make(config, n=300, seed=0, split="train"):
    batch = config.labelled(seed, np.arange(n), split)
    return tuple(np.asarray(part) for part in (batch.tokens, batch.positions, batch.targets))


def bindings(tokens, config):
    """Keys and values of the context, in their order."""
    context = tokens[:, : config.context_length]
    return context[:, ::2], context[:, 1::2]


def assert_law(counts, probabilities):
    """Chi-square: the statistic has mean k - 1 and variance 2 (k - 1); six deviations are beyond chance."""
    expected = probabilities / probabilities.sum() * counts.sum()
    assert expected.min() > 5
    statistic, dof = ((counts - expected) ** 2 / expected).sum(), counts.size - 1
    assert statistic < dof + 6 * math.sqrt(2 * dof)


@parametrize_configs
@pytest.mark.parametrize("split", ["train", "test"])
def test_layout_of_every_example(config, split):
    """Kills: an update of a key that is not there, or of one twice, or to its old value; the first value as target; a
    query that is missing, out of place, or asks for another pair's value."""
    n, half = config.n_pairs, config.vocab_size // 2
    tokens, positions, targets = make(config, split=split)
    assert tokens.shape == (300, config.length)
    assert positions.shape == targets.shape == (300, n)
    assert tokens.dtype == positions.dtype == targets.dtype == np.int32
    for example, asked, answers in zip(tokens.tolist(), positions.tolist(), targets.tolist(), strict=True):
        keys, values = example[: config.context_length : 2], example[1 : config.context_length : 2]
        assert all(1 <= key < half for key in keys)
        assert all(half <= value < config.vocab_size for value in values)
        assert len(set(keys[:n])) == len(set(values[:n])) == n
        assert len(set(keys[n:])) == config.n_updates
        assert set(keys[n:]) <= set(keys[:n])
        for key, value in zip(keys[n:], values[n:], strict=True):
            assert values[keys.index(key)] != value
        assert all(position >= config.context_length and position % 2 == 0 for position in asked)
        assert [example[position] for position in asked] == keys[:n]
        for key, answer in zip(keys[:n], answers, strict=True):
            assert answer == [v for k, v in zip(keys, values, strict=True) if k == key][-1]
        rest = [token for t, token in enumerate(example) if t >= config.context_length and t not in asked]
        assert config.fillers == "any" or set(rest) <= {NEUTRAL}


@parametrize_configs
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_is_right_and_labels_of_other_examples_are_chance(config, split):
    """Kills a label that reading cannot give, and an accuracy that is high for any labels."""
    tokens, positions, targets = make(config, split=split)
    predictions = forgetting_mqar.oracle(tokens, config)
    np.testing.assert_array_equal(np.take_along_axis(predictions, positions, axis=1), targets)
    if config.fillers == "zero":
        assert (predictions != UNLABELLED).sum() == targets.size
    chance = 1 / config.n_values
    assert abs((targets == np.roll(targets, 1, axis=0)).mean() - chance) < 5 * math.sqrt(chance / targets.size)


@parametrize_configs
def test_who_ignores_the_updates_is_wrong_about_them(config):
    """Kills a task that MQAR's solution solves: first values are right where they were kept, and nowhere else."""
    tokens, _, targets = make(config)
    _, values = bindings(tokens, config)
    kept = values[:, : config.n_pairs] == targets
    assert (kept.sum(1) == config.n_pairs - config.n_updates).all()


def test_the_oracle_reads_the_worked_example():
    """Kills an oracle that echoes the generator: the example of the module docstring, with A .. D for 1 .. 4."""
    config = ForgettingMQARConfig(vocab_size=40, length=20, n_pairs=4, n_updates=2)
    tokens = [1, 25, 2, 23, 3, 27, 4, 22, 3, 21, 1, 29, 2, 0, 4, 0, 1, 0, 3, 0]
    expected = [-100] * 12 + [23, -100, 22, -100, 29, -100, 21, -100]
    np.testing.assert_array_equal(forgetting_mqar.oracle(np.array([tokens]), config), [expected])


@pytest.mark.parametrize("split", ["train", "test"])
def test_keys_values_and_updates_are_uniform(split):
    """Kills: a split that shows in one token, an update that prefers the first pairs or keeps their order, a new value
    that avoids another pair's, or piles up beside the old one."""
    config = ForgettingMQARConfig(vocab_size=26, length=24, n_pairs=4, n_updates=2)
    tokens, _, _ = make(config, 12_000, 3, split)
    keys, values = bindings(tokens, config)
    for pair in range(config.n_pairs):
        assert_law(np.bincount(keys[:, pair], minlength=config.n_keys + 1)[1:], np.ones(config.n_keys))
    for place in range(config.n_pairs + config.n_updates):
        assert_law(np.bincount(values[:, place] - config.first_value, minlength=config.n_values), np.ones(13))
    again = (keys[:, 4:, None] == keys[:, None, :4]).argmax(-1)
    codes = again[:, 0] * 4 + again[:, 1]
    pairs = [a * 4 + b for a, b in itertools.permutations(range(4), 2)]
    assert_law(np.bincount(codes, minlength=16)[pairs], np.ones(12))
    old = np.take_along_axis(values[:, :4], again, 1)
    steps = (values[:, 4:] - old) % config.n_values
    assert_law(np.bincount(steps.ravel(), minlength=13)[1:], np.ones(12))
    assert abs((keys[:, 0] < keys[:, 1]).mean() - 0.5) < 0.025
    assert abs(((keys[:, 0] + values[:, 0]) % 2).mean() - 0.5) < 0.025


def test_slots_follow_the_law_of_the_gap():
    """Kills: an exponent off by one, a law that starts elsewhere, slots that are sorted by pair."""
    config = ForgettingMQARConfig(vocab_size=64, length=26, n_pairs=3, n_updates=2)
    _, positions, _ = make(config, 20_000)
    slots = (positions - config.context_length) // 2
    assert config.n_slots == 8
    law = np.arange(1.0, 9) ** (config.power - 1)
    assert_law(np.bincount(slots[:, 0], minlength=8), law)
    rng = np.random.default_rng(1)
    reference = np.stack([rng.choice(8, 3, replace=False, p=law / law.sum()) for _ in range(20_000)])
    for pair in (1, 2):
        ours, numpys = (np.bincount(drawn[:, pair], minlength=8) for drawn in (slots, reference))
        assert ((ours - numpys) ** 2 / (ours + numpys)).sum() < 7 + 6 * math.sqrt(14)


def test_fillers_are_any_token():
    """Kills fillers of half the vocabulary, or without 0."""
    config = ForgettingMQARConfig(vocab_size=24, length=20, n_pairs=2, n_updates=1)
    tokens, positions, _ = make(config, 4000)
    empty = np.ones(tokens.shape, bool)
    empty[:, : config.context_length] = False
    np.put_along_axis(empty, positions, False, axis=1)
    assert_law(np.bincount(tokens[empty], minlength=24), np.ones(24))


def kind(tokens, config):
    keys, values = bindings(tokens, config)
    first = keys[:, : config.n_pairs]
    inversions = np.triu(first[:, :, None] > first[:, None, :], 1).sum((1, 2))
    return (inversions + first.sum(1) + values.sum(1)) % 2


@parametrize_configs
def test_splits_are_even_and_odd(config):
    """Kills: a swap that leaves a query or an update behind, a swap in the wrong direction."""
    for split, odd in (("train", 0), ("test", 1)):
        assert (kind(make(config, split=split)[0], config) == odd).all()


def test_no_example_is_in_both_splits():
    """Kills leakage where it is likeliest: so few examples exist that each split is seen nearly whole."""
    config = ForgettingMQARConfig(vocab_size=11, length=10, n_pairs=2, n_updates=1, fillers="zero", power=1.0)
    train, test = ({row.tobytes() for row in make(config, 40_000, 0, split)[0]} for split in ("train", "test"))
    keys, old, again, new, orders = 4 * 3, 6 * 5, 2, 5, 2
    assert not train & test
    assert len(train) + len(test) == keys * old * again * new * orders
    assert abs(len(train) - len(test)) < 0.1 * (len(train) + len(test))


@parametrize_configs
def test_an_example_is_a_function_of_its_number(config):
    """Kills examples that depend on their batch, or not on their seed."""
    whole = make(config)
    part = config.labelled(0, np.array([7, 2]))
    for all_of_them, some in zip(whole, (part.tokens, part.positions, part.targets), strict=True):
        np.testing.assert_array_equal(all_of_them[[7, 2]], some)
    assert (make(config, seed=1)[0][:, 0] != whole[0][:, 0]).mean() > 0.8


def test_sizes_and_splits_draw_apart():
    """Kills equal random numbers under another size or split: keys at equal places agree by chance alone."""
    base = make(CONFIGS["default"])[0][:, :16:2]
    others = [{"length": 66}, {"n_pairs": 9}, {"n_updates": 5}]
    tokens = [make(dataclasses.replace(CONFIGS["default"], **fields))[0] for fields in others]
    for other in [*tokens, make(CONFIGS["default"], split="test")[0]]:
        assert (other[:, :16:2] == base).mean() < 0.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_pairs": 1, "n_updates": 1}, "n_pairs=1 must be at least 2: one key alone would tell train from test"),
        ({"n_updates": 9}, "n_updates=9 must be at most n_pairs=8"),
        ({"n_updates": 0}, "n_updates=0 must be positive"),
        ({"length": 65}, "length=65 must be even"),
        ({"length": 38}, "length=38 must be at least 40: 8 pairs, 4 updates and 8 queries; raise length"),
        ({"vocab_size": 64}, "vocab_size=64 must exceed length=64; raise vocab_size or lower length"),
        ({"power": 0.0}, "power=0.0 must be positive"),
        ({"power": 23.0}, "power=23.0 must be smaller: in float32 it gives some slots no chance"),
        ({"fillers": "random"}, "fillers='random' must be one of 'zero', 'any'"),
    ],
)
def test_config_errors(fields, message):
    """Kills a task that has no examples, and a message that names the wrong field."""
    with pytest.raises(ValueError, match=f"^ForgettingMQARConfig.{message}"):
        ForgettingMQARConfig(**fields)
