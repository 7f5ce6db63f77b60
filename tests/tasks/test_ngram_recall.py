"""N-gram recall. Kills: grams that repeat by accident."""

import math

import numpy as np
import pytest

from jaxzoo.tasks import ngram_recall
from jaxzoo.tasks.ngram_recall import FIRST_KEY, NO_MATCH, NGramRecallConfig
from tests.tasks.examples import SMALL, assert_refused, make
from tests.tasks.oracles import oracle

CONFIGS = {
    "ar": SMALL["ar"],
    "mqnar": SMALL["mqnar"],
    "paper": ngram_recall.mqnar(64, 8, vocab_size=64),
    "trigrams": NGramRecallConfig(
        vocab_size=64, length=30, n_gram=3, n_pairs=3, n_queries=2, n_unmatched=2, n_letters=2
    ),
    "random": NGramRecallConfig(vocab_size=64, length=50, n_pairs=5, n_unmatched=3, fillers="random"),
}
parametrize_configs = pytest.mark.parametrize(
    "config",
    [
        pytest.param(c, id=name, marks=[] if name in ("ar", "mqnar") else pytest.mark.full)
        for name, c in CONFIGS.items()
    ],
)


@parametrize_configs
def test_layout_of_every_example(config):
    """Kills: grams that arise across a border, repeated grams, and queries that touch: Definitions 2, 3 and 5 read off
    the tokens, at every position; another number of queries without a match; tokens of the other half; a split that is
    not told by the values."""
    for split in ("train", "test"):
        tokens, positions, targets = make(config, split=split)
        n = config.n_gram
        for example, ends, answers in zip(
            tokens[:200].tolist(), positions[:200].tolist(), targets[:200].tolist(), strict=True
        ):
            for end, answer in zip(ends, answers, strict=True):
                query = example[end - n + 1 : end + 1]
                matches = [j for j in range(n - 1, end) if example[j - n + 1 : j + 1] == query]
                assert [example[j + 1] for j in matches] == ([] if answer == NO_MATCH else [answer])
        said = oracle(tokens[:200], config)
        np.testing.assert_array_equal(np.take_along_axis(said, positions[:200], axis=1), targets[:200])
        assert ((targets == NO_MATCH).sum(1) == config.n_unmatched).all()
        context = tokens[:, : config.context_length].reshape(len(tokens), config.n_pairs, -1)
        assert ((context[:, :, -1] - config.first_value).sum(1) % 2 == (split == "test")).all()
        assert (context[:, :, :-1] >= FIRST_KEY).all()
        assert (context[:, :, :-1] < config.first_value).all()


@pytest.mark.parametrize(
    "config", [SMALL["ar"], pytest.param(ngram_recall.nar(20, 2, vocab_size=64), marks=pytest.mark.full)]
)
def test_a_single_query_ends_the_example_and_asks_for_any_pair(config):
    """Kills: a query in the middle, and one that always asks for the same pair."""
    tokens, positions, targets = make(config)
    assert (positions == config.length - 1).all()
    values = tokens[:, : config.context_length].reshape(len(tokens), config.n_pairs, -1)[:, :, -1]
    asked = np.array([np.flatnonzero(row == answer)[0] for row, (answer,) in zip(values, targets, strict=True)])
    counts = np.bincount(asked, minlength=config.n_pairs)
    mean = len(tokens) / config.n_pairs
    # Equal values of two pairs are told as the first of them: a few more there.
    assert np.abs(counts - mean).max() < 5 * math.sqrt(mean) + len(tokens) * config.n_pairs / config.n_values / 2


@pytest.mark.full
def test_no_letter_gives_the_answer_away():
    """Kills: grams of tokens that are all different: the last letter alone leaves several grams open."""
    tokens = make(CONFIGS["paper"]).tokens
    grams = tokens[:, : CONFIGS["paper"].context_length].reshape(len(tokens), 8, 3)[:, :, :2]
    shared = [(row[:, 1][:, None] == row[:, 1][None]).sum() - 8 for row in grams]
    assert np.mean(shared) > 4
    letters = [len(np.unique(row)) for row in grams]
    assert max(letters) <= CONFIGS["paper"].letters == 5


def test_config_errors():
    """Kills: a task that has no examples."""
    cases = [
        ({"n_pairs": 1}, "n_pairs=1 must be at least 2: one value alone"),
        ({"n_queries": 9}, "n_queries=9 must be at most n_pairs=8"),
        ({"vocab_size": 126}, "vocab_size=126 must be a multiple of 4"),
        ({"length": 46}, "length=46 must be at least 47, for 8 pairs and 8 queries of 2-grams"),
        ({"vocab_size": 8}, "vocab_size=8 must be at least 12: the grams of an example have 4 tokens"),
        ({"n_letters": 2}, r"n_letters=2 must make 8 different 2-grams, makes 2\^2; raise it, or leave it 0"),
        ({"n_gram": 16, "length": 800, "n_letters": 4}, "n_letters=4 must make fewer than"),
        ({"fillers": "any"}, "fillers='any' must be one of 'zero', 'random'"),
        ({"power": 1e30}, "power=1e\\+30 must be smaller"),
    ]
    assert_refused(NGramRecallConfig, cases)
