"""N-gram recall: examples, laws, the split, and an oracle that only reads."""

import math

import numpy as np
import pytest

from jaxzoo.tasks import ngram_recall
from jaxzoo.tasks.ngram_recall import FIRST_KEY, NO_MATCH, NGramRecallConfig

CONFIGS = {
    "ar": ngram_recall.ar(17, vocab_size=64),
    "nar": ngram_recall.nar(20, 2, vocab_size=64),
    "mqnar": ngram_recall.mqnar(64, 8, vocab_size=64),
    "trigrams": NGramRecallConfig(
        vocab_size=64, length=30, n_gram=3, n_pairs=3, n_queries=2, n_unmatched=2, n_letters=2
    ),
    "random": NGramRecallConfig(vocab_size=64, length=50, n_pairs=5, n_unmatched=3, fillers="random"),
}
parametrize_configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def make(config, n=200, seed=0, split="train"):
    batch = config.labelled(seed, np.arange(n), split)
    return tuple(np.asarray(part) for part in (batch.tokens, batch.positions, batch.targets))


@parametrize_configs
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_is_right_and_shuffled_labels_are_chance(config, split):
    """Kills a label that reading cannot give, or at another token than the last of its gram."""
    tokens, positions, targets = make(config, split=split)
    said = ngram_recall.oracle(tokens, config)
    np.testing.assert_array_equal(np.take_along_axis(said, positions, axis=1), targets)
    assert (targets == NO_MATCH).sum(1).tolist() == [config.n_unmatched] * len(targets)
    values = targets != NO_MATCH
    shuffled = np.random.default_rng(0).permutation(targets[values])
    chance = 1 / config.n_values
    assert abs((targets[values] == shuffled).mean() - chance) < 5 * math.sqrt(chance / values.sum())


@parametrize_configs
def test_a_query_has_one_match_in_all_of_the_past(config):
    """Kills grams that arise across a border, repeated grams, and queries that touch: Definitions 2, 3 and 5 read off
    the tokens, at every position."""
    tokens, positions, targets = make(config)
    n = config.n_gram
    for example, ends, answers in zip(tokens.tolist(), positions.tolist(), targets.tolist(), strict=True):
        for end, answer in zip(ends, answers, strict=True):
            query = example[end - n + 1 : end + 1]
            matches = [j for j in range(n - 1, end) if example[j - n + 1 : j + 1] == query]
            assert [example[j + 1] for j in matches] == ([] if answer == NO_MATCH else [answer])


@pytest.mark.parametrize("name", ["ar", "nar"])
def test_a_single_query_ends_the_example_and_asks_for_any_pair(name):
    """Kills a query in the middle, and one that always asks for the same pair."""
    config = CONFIGS[name]
    tokens, positions, targets = make(config, n=2000)
    assert (positions == config.length - 1).all()
    values = tokens[:, : config.context_length].reshape(2000, config.n_pairs, -1)[:, :, -1]
    asked = np.array([np.flatnonzero(row == answer)[0] for row, (answer,) in zip(values, targets, strict=True)])
    counts = np.bincount(asked, minlength=config.n_pairs)
    mean = 2000 / config.n_pairs
    # Equal values of two pairs are told as the first of them: a few more there.
    assert np.abs(counts - mean).max() < 5 * math.sqrt(mean) + 2000 * config.n_pairs / config.n_values / 2


def test_no_letter_gives_the_answer_away():
    """Kills grams of tokens that are all different: the last letter alone leaves several grams open."""
    tokens, _, _ = make(CONFIGS["mqnar"])
    grams = tokens[:, : CONFIGS["mqnar"].context_length].reshape(200, 8, 3)[:, :, :2]
    shared = [(row[:, 1][:, None] == row[:, 1][None]).sum() - 8 for row in grams]
    assert np.mean(shared) > 4
    letters = [len(np.unique(row)) for row in grams]
    assert max(letters) <= CONFIGS["mqnar"].letters == 5


def test_slots_follow_the_law_of_the_gap():
    """Kills an exponent off by one, slots of another width, and a law that starts elsewhere."""
    config = NGramRecallConfig(vocab_size=64, length=29, n_pairs=3, n_queries=1)
    _, positions, _ = make(config, n=20_000)
    slots = (positions[:, 0] - config.context_length - 1) / 3
    law = np.arange(1.0, config.n_slots + 1) ** (config.power - 1)
    expected = 20_000 * law / law.sum()
    assert config.n_slots == 7
    assert np.abs(np.bincount(slots.astype(int), minlength=7) - expected).max() < 5 * math.sqrt(expected.max())


@parametrize_configs
def test_no_example_is_in_both_splits(config):
    """Kills a test set that was trained on: the kind is read off the values of the context."""
    for split, odd in (("train", 0), ("test", 1)):
        tokens, _, _ = make(config, split=split)
        context = tokens[:, : config.context_length].reshape(len(tokens), config.n_pairs, -1)
        assert ((context[:, :, -1] - config.first_value).sum(1) % 2 == odd).all()
        assert (context[:, :, :-1] >= FIRST_KEY).all()
        assert (context[:, :, :-1] < config.first_value).all()


@parametrize_configs
def test_an_example_is_a_function_of_its_number(config):
    """Kills examples that depend on their batch."""
    whole = make(config, n=9)
    part = config.labelled(0, np.array([7, 2]))
    for all_of_them, some in zip(whole, (part.tokens, part.positions, part.targets), strict=True):
        np.testing.assert_array_equal(all_of_them[[7, 2]], some)
    assert (make(config, n=9, seed=1)[0] != whole[0]).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_pairs": 1}, "n_pairs=1 must be at least 2: one value alone"),
        ({"n_queries": 9}, "n_queries=9 must be at most n_pairs=8"),
        ({"vocab_size": 126}, "vocab_size=126 must be a multiple of 4"),
        ({"length": 46}, "length=46 must be at least 47, for 8 pairs and 8 queries of 2-grams"),
        ({"vocab_size": 8}, "vocab_size=8 must be at least 12: the grams of an example have 4 tokens"),
        ({"n_letters": 2}, r"n_letters=2 must make 8 different 2-grams, makes 2\^2; raise it, or leave it 0"),
        ({"n_gram": 16, "length": 800, "n_letters": 4}, "n_letters=4 must make fewer than"),
        ({"fillers": "any"}, "fillers='any' must be one of 'zero', 'random'"),
        ({"power": 1e30}, "power=1e\\+30 must be smaller"),
    ],
)
def test_config_errors(fields, message):
    """Kills a task that has no examples."""
    with pytest.raises(ValueError, match=message):
        NGramRecallConfig(**fields)


def test_presets_refuse_lengths_that_pairs_do_not_fill():
    """Kills an example with an empty place."""
    with pytest.raises(ValueError, match=r"length=18 must be 2 more than a multiple of 3: .*; take 17"):
        ngram_recall.nar(18, 2)
