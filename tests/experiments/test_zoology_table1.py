"""Zoology, Table 1. Kills: AR hits or intervals that differ from those by hand."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import zoology_table1 as figure
from experiments.recall_text import HIT_ACCURACY, RecallTextConfig
from jaxzoo.data.base import UNLABELLED
from jaxzoo.data.corpus.files import read_corpus
from jaxzoo.evals.validation import Scores, evaluate
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.sweep import Measurement, Missing, Results
from jaxzoo.sweep.claims import made_up_row
from jaxzoo.sweep.results import BITS

N_HITS, N_OTHERS, BYTES = 10, 40, 2.5


def text(n=4):
    sizes = {f"{kind}={i}": each for i in range(n) for kind, each in (("hits", N_HITS), ("others", N_OTHERS))}
    metrics = {BITS: 3.0, "documents": float(n), "bytes_per_token": BYTES, **sizes}
    return made_up_row({"model": figure.TEXT, "learning_rate": None, "seed": None}, metrics, 0)


def trained(model, hits, others, seed=0, accuracy=0.5):
    """Row of a run with the given sums of nats per document."""
    unit = BYTES * math.log(2)
    found = {f"{BITS}/hits={i}": nats / N_HITS / unit for i, nats in enumerate(hits)}
    found |= {f"{BITS}/others={i}": nats / N_OTHERS / unit for i, nats in enumerate(others)}
    point = {"model": model, "learning_rate": 0.1, "seed": seed}
    return made_up_row(point, {BITS: 2.0, HIT_ACCURACY: accuracy, **found}, hash((model, seed)))


ATTENTION = trained(figure.ATTENTION, [20.0, 25.0, 30.0, 35.0], [100.0, 90.0, 80.0, 70.0])


def worse(model, hits, others, seed=0):
    """Row of a run with the given differences from attention per document."""
    return trained(model, np.add([20, 25, 30, 35], hits), np.add([100, 90, 80, 70], others), seed, 0.1)


def interval(*rows, models=("Hyena",)):
    return figure.share(Results([text(), ATTENTION, *rows]), *models).interval


def test_intervals_by_hand():
    """Kills: tokens that are resampled in place of documents, documents of one model alone, seeds that are resampled,
    the shares of two models that are averaged in place of their gaps."""
    even = worse("Hyena", [3, 3, 3, 3], [1, 1, 1, 1])
    assert interval(even) == pytest.approx((0.75, 0.75))
    # Drawn k of 4 times, the first document makes the share 12 k / (12 k + 4). P(k = 0) = 0.32, P(k >= 3) = 0.051 and
    # P(k = 4) = 0.004: the quantiles are those of k = 0 and of k = 3.
    assert interval(worse("Hyena", [12, 0, 0, 0], [1, 1, 1, 1])) == pytest.approx((0.0, 0.9))
    seeds = [worse("Hyena", [7, 0, 7, 0], [1, 1, 1, 1]), worse("Hyena", [-1, 6, -1, 6], [1, 1, 1, 1], seed=1)]
    assert interval(*seeds) == pytest.approx((0.75, 0.75))
    other = worse("BaseConv", [9, 9, 9, 9], [11, 11, 11, 11])
    assert interval(even, other, models=("Hyena", "BaseConv")) == pytest.approx((0.5, 0.5))
    assert interval(worse("Hyena", [2, -2, 2, -2], [1, -1, 1, -1])) is None


def test_the_table():
    """Kills: a slice under another's heading, sums in the place of means, a share without interval."""
    rows = [text(), ATTENTION, worse("Hyena", [3, 3, 3, 3], [1, 1, 1, 1]), worse("Mamba", [2, -2, 2, -2], [0] * 4)]
    heads, *lines = figure.table(Results(rows))
    assert heads[2:5] == ["all tokens", "AR hits", "other tokens"]
    assert lines == [
        ["attention", "1", "2.250", "2.750", "2.125", "-", "-"],
        ["Hyena", "1", "2.330", "3.050", "2.150", "75%", "75% to 75%"],
        ["Mamba", "1", "2.250", "2.750", "2.125", "-", "-"],
    ]
    assert figure.draw(Results(rows)).axes
    with pytest.raises(Missing):
        figure.table(Results(rows[1:]))


def test_models_are_equal_but_for_their_mixers():
    """Kills: a larger model, more tokens for one, other documents than those that are counted."""
    sizes = {name: make_blueprint(model).n_params for name, model in figure.MODELS.items()}
    assert max(sizes.values()) < 1.01 * min(sizes.values()), sizes
    for made in figure.experiment.scales.values():
        scale = made()
        first, *runs = [scale.config(point) for point in scale.points]
        assert isinstance(first, Measurement)
        assert len({(run.data, run.train.steps, run.train.batch_size, run.optimizer) for run in runs}) == 1
        assert {name: getattr(runs[0].data, name) for name in first.arguments} == first.arguments


@pytest.fixture
def config(tmp_path):
    """Forty short files of few letters, whose bigrams are frequent or rare; one is shorter than a window."""
    rng = np.random.default_rng(0)
    for i in range(40):
        letters = rng.choice(list("abcdefgh"), p=[0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05], size=5 + 3 * i)
        (tmp_path / f"{i}.txt").write_text("".join(letters))
    return RecallTextConfig(path=str(tmp_path), length=16, windows=3, valid_fraction=0.3, bpe_size=257, rare=60)


def by_hand(config):
    """Yields for each document the targets and whether each is an AR hit, token by token."""
    corpus, tokenizer = read_corpus(config.path, valid_fraction=config.valid_fraction, seed=0), config.tokenizer()
    train = [token for d in corpus.train for token in [*tokenizer.encode(d.data.decode()), tokenizer.end_of_text]]
    pairs = list(itertools.pairwise(train))
    for document in corpus.valid:
        tokens = [int(token) for token in tokenizer.encode(document.data.decode())] + [tokenizer.end_of_text]
        found = []
        for i in range(min(len(tokens) - 1, config.windows * config.length)):
            window = tokens[i // config.length * config.length : i + 1]
            pair = (tokens[i], tokens[i + 1])
            repeated = pair in itertools.pairwise(window)
            found.append((tokens[i + 1], repeated and pairs.count(pair) <= config.rare))
        yield found


def test_ar_hits(config):
    """Kills: a bigram of another window or document, counts of held-out text, padding that is scored, a target that is
    scored twice or never, a guess that has seen the context."""
    first = config.build(batch_size=1, valid_batch_size=1)
    counts = [first.seen[d.tokens, d.targets][d.hits].max() for d in first.documents if d.hits.any()]
    config = dataclasses.replace(config, rare=int(max(counts)))  # which some are seen as often as
    data = config.build(batch_size=1, valid_batch_size=1)
    right, shares = data.seen.argmax(axis=1), []
    # The last document may lose its end: validation text is cut to whole windows.
    for document, expected in zip(data.documents[:-1], list(by_hand(config))[:-1], strict=True):
        labelled = document.targets != UNLABELLED
        found = zip(document.targets[labelled].tolist(), document.hits[labelled].tolist(), strict=True)
        assert list(found) == expected
        assert not document.hits[~labelled].any()
    for tokens, targets, hits in (rows for document in data.documents for rows in zip(*document, strict=True)):
        shares += [(right[tokens] == targets)[hits].mean()] if hits.any() else []
    all_hits = np.concatenate([document.hits for document in data.documents])
    assert 20 < all_hits.sum() < 0.5 * all_hits.size
    assert not all(document.hits.any() for document in data.documents)
    assert config.guessing_lines() == {HIT_ACCURACY: pytest.approx(np.mean(shares), abs=1e-4)}


def test_metrics_become_sums_of_documents(config, monkeypatch):
    """Kills: means in the place of sums, bits for nats, documents that change places, a document without hits."""
    monkeypatch.setattr("experiments.recall_text.RecallTextConfig", lambda **_: config)
    data = config.build(batch_size=1, valid_batch_size=1)

    def score(batch):
        labelled = batch.targets != UNLABELLED
        nats = jnp.where(labelled, batch.targets, 0).astype(jnp.float32) / 50
        return Scores(*(jnp.sum(x, dtype=jnp.float32) for x in (nats, labelled, 0 * nats, labelled.any(axis=1))))

    metrics = evaluate(score, data.valid(), row_multiple=1, bytes_per_token=data.bytes_per_token)
    numbers = figure.text_numbers(length=16, windows=3, valid_fraction=0.3)
    rows = [
        made_up_row({"model": name, "learning_rate": None, "seed": None}, each, i)
        for i, (name, each) in enumerate(((figure.TEXT, numbers), ("Hyena", metrics)))
    ]
    found = figure.measured(Results(rows), "Hyena")
    targets = [np.where(document.targets == UNLABELLED, 0, document.targets) for document in data.documents]
    expected = [[each.sum() / 50, each[d.hits].sum() / 50] for each, d in zip(targets, data.documents, strict=True)]
    np.testing.assert_allclose(found.windows, expected, rtol=1e-5)
    n = sum((document.targets != UNLABELLED).sum() for document in data.documents)
    assert found.sections.slices["all tokens"].nats == pytest.approx(metrics["valid/loss"], rel=1e-6)
    assert found.sections.slices["all tokens"].tokens == n
