"""Markov baselines of DNA against dictionaries. Kills: a context that is off by one."""

import math
from collections import Counter, defaultdict

import numpy as np

from jaxzoo.data.statistics import ngram
from jaxzoo.data.statistics.ngram import markov_baselines


def by_hand(train, text, order):
    """Nats of each target: the recursion of the module docstring, base by base."""
    follow = defaultdict(Counter)
    for i, w in enumerate(train):
        for k in range(1, order + 1):
            context = tuple(train[max(i - k, 0) : i])
            if len(context) == k and max(context) < 4 and w < 4:
                follow[context][w] += 1
    kinds = Counter(train)
    share = {w: (kinds[w] + 1) / (len(train) + 6) for w in range(6)}
    bases = sum(share[w] for w in range(4))

    def p(w, context):
        if not context:
            return share[w] / bases
        counts = follow[context]
        lower = p(w, context[1:])
        total = sum(counts.values())
        return (counts[w] + len(counts) * lower) / (total + len(counts)) if total else lower

    nats = []
    for i in range(1, len(text)):
        context = []
        for w in reversed(text[max(i - order, 0) : i]):
            if w >= 4:
                break
            context.insert(0, w)
        nats.append(-math.log(share[text[i]] if text[i] >= 4 else bases * p(text[i], tuple(context))))
    return nats


def test_against_dictionaries(monkeypatch):
    """Kills: a context off by one, pairs lost where chunks meet, N taken for T, a lower order that is left out."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(ngram, "CHUNK", 37)
    draw = lambda n: rng.choice(6, n, p=[0.3, 0.2, 0.2, 0.2, 0.07, 0.03]).astype(np.uint16)  # noqa: E731
    train, text = draw(400), draw(150)
    scores = markov_baselines(train, text[:-1], text[1:], highest=4)
    n_bytes = np.count_nonzero(text[1:] != 5)
    for order in range(5):
        nats = by_hand(train.tolist(), text.tolist(), order)
        score = scores[f"order-{order}"]
        np.testing.assert_allclose(score.nats_per_token, np.mean(nats), rtol=1e-12)
        np.testing.assert_allclose(score.bits_per_byte, np.sum(nats) / math.log(2) / n_bytes, rtol=1e-12)
