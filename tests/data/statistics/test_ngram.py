"""N-gram baselines against sums by hand. Kills: pairs lost between chunks."""

import math
from collections import Counter

import numpy as np
import pytest

from jaxzoo.data.statistics import ngram
from jaxzoo.data.statistics.ngram import ngram_baselines


def test_three_symbols_by_hand():
    """Kills: add-one without the vocabulary, a transposed pair table, and weights of the wrong token.

    Train 0 0 1 0 2 with V = 3: p(0) = 4/8, p(1) = p(2) = 2/8. After 0 come {0: 1, 1: 1, 2: 1}, so c = u = 3;
    after 1 comes {0: 1}, so c = u = 1; 2 is never followed. Targets (0 -> 1), (1 -> 2), (2 -> 0), (1 -> 0):
    (1 + 3/4) / 6 = 7/24, (0 + 1/4) / 2 = 1/8, p(0) = 1/2, (1 + 1/2) / 2 = 3/4.
    """
    train = np.array([0, 0, 1, 0, 2], np.uint16)
    tokens, targets = np.array([[0, 1], [2, 1]], np.uint16), np.array([[1, 2], [0, 0]], np.uint16)
    scores = ngram_baselines(train, tokens, targets, vocab_size=3, n_bytes=3)
    unigram_nats = -math.log(1 / 4 * 1 / 4 * 1 / 2 * 1 / 2)
    bigram_nats = -math.log(7 / 24 * 1 / 8 * 1 / 2 * 3 / 4)
    for name, nats in (("unigram", unigram_nats), ("bigram", bigram_nats)):
        assert scores[name].nats_per_token == pytest.approx(nats / 4, rel=1e-12)
        assert scores[name].bits_per_byte == pytest.approx(nats / math.log(2) / 3, rel=1e-12)
        assert scores[name].perplexity == pytest.approx(math.exp(nats / 4), rel=1e-12)


@pytest.mark.parametrize("chunk", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2**22))])
def test_equals_counting_in_plain_python(monkeypatch, chunk):
    """Kills: pairs lost or doubled between chunks, and uint16 overflow in `token * V`."""
    monkeypatch.setattr(ngram, "CHUNK", chunk)
    rng = np.random.default_rng(5)
    vocab, train = 300, rng.integers(200, 300, 601).astype(np.uint16)
    tokens, targets = (rng.integers(190, 300, (3, 7)).astype(np.uint16) for _ in range(2))
    ones, pairs = Counter(train.tolist()), Counter(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))

    def p(w, v=None):
        unigram = (ones[w] + 1) / (len(train) + vocab)
        after = [n for (first, _), n in pairs.items() if first == v]
        return (pairs[v, w] + len(after) * unigram) / (sum(after) + len(after)) if after else unigram

    scores = ngram_baselines(train, tokens, targets, vocab_size=vocab, n_bytes=21)
    expected = -np.mean([math.log(p(w)) for w in targets.ravel().tolist()])
    assert scores["unigram"].nats_per_token == pytest.approx(expected, rel=1e-12)
    both = zip(targets.ravel().tolist(), tokens.ravel().tolist(), strict=True)
    expected = -np.mean([math.log(p(w, v)) for w, v in both])
    assert scores["bigram"].nats_per_token == pytest.approx(expected, rel=1e-12)
