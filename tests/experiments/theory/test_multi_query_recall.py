"""Recall of many queries and of "no match". Kills: a sink that answers with a token."""

import numpy as np
import pytest

from experiments.theory.ngram_recall import multi_query_recall_model, with_opening
from jaxzoo.tasks.ngram_recall import NO_MATCH, NGramRecallConfig
from tests.experiments.theory.recall import likeliest, orthonormal_rows, unit_rows


def task_of(n_gram, vocab_size):
    return NGramRecallConfig(
        vocab_size=vocab_size, length=200, n_gram=n_gram, n_pairs=20, n_unmatched=8, power=1.0, fillers="random"
    )


def accuracies(task, model, *, n, seed=0):
    """Shares of right answers to queries with a match, and to those without."""
    batch = task.labelled(seed, np.arange(n))
    tokens = with_opening(batch.tokens, n_gram=task.n_gram, vocab_size=task.vocab_size)
    right = np.asarray(likeliest(model, tokens, batch.positions + task.n_gram + 1) == batch.targets)
    matched = np.asarray(batch.targets != NO_MATCH)
    return right[matched].mean(), right[~matched].mean()


SLOW = pytest.mark.slow


@pytest.mark.full
@pytest.mark.parametrize(
    ("n_gram", "vocab_size"), [pytest.param(1, 192, marks=SLOW), (2, 32), pytest.param(3, 20, marks=SLOW)]
)
def test_all_queries(n_gram, vocab_size):
    """Kills: a sink that answers with a token of the context, one with the wrong sign (a filter whose first tap is
    negative), one that wins over a match or loses against the closest gram; random fillers, filters, embeddings."""
    task = task_of(n_gram, vocab_size)
    for seed, first in enumerate((1.0, -1.0)):
        taps = first * np.array([1.0, 0.6, 1.7])[:n_gram]
        embeddings = unit_rows(vocab_size, 16, seed=seed) if n_gram < 3 else orthonormal_rows(vocab_size, seed=seed)
        model = multi_query_recall_model(embeddings, taps, length=200)
        assert accuracies(task, model, n=16, seed=seed) == (1, 1)


@pytest.mark.full
def test_no_match_needs_the_opening():
    """Kills: an opening that does nothing: without its bias all matches are right, and no "no match"."""
    task = task_of(2, 32)
    model = multi_query_recall_model(unit_rows(32, 16), np.array([1.0, -0.6]), length=200)
    bias = model.stacks[0].blocks[0].mixer.q_proj.bias
    bias[...] = 0 * bias[...]
    assert accuracies(task, model, n=16) == (1, 0)
