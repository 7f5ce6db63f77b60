"""Guessing lines of tasks. Kills: a line that is lower than guessing."""

import pytest

from jaxzoo.tasks import mqar, ngram_recall
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig, guessing_line


def test_guessing_lines():
    """Kills: a line below one over the pairs, the share of answers "no match" left out, slices that share a line."""
    two, four = mqar.paper(8, 2, vocab_size=32), mqar.paper(32, 4, vocab_size=64)
    # Two slots for two keys: the first key comes first with 1 / (1 + 2^-0.9) = 0.651, both are right or wrong then.
    assert guessing_line(two) == pytest.approx(0.651, abs=0.04)
    assert 0.25 < guessing_line(four) < 0.4
    assert guessing_line(ngram_recall.mqnar(48, 4, vocab_size=64)) >= 0.2  # of five queries one has no match
    sets = tuple(Examples(task=task, n_examples=n) for task, n in ((two, 100), (four, 300)))
    lines = RecallDataConfig(train=sets, valid=sets).guessing_lines()
    assert lines["valid/accuracy/pairs=2"] == pytest.approx(guessing_line(two), abs=1e-4)
    assert lines["valid/accuracy"] == pytest.approx((guessing_line(two) + 3 * guessing_line(four)) / 4, abs=1e-4)
