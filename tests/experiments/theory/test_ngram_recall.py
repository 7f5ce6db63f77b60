"""CAT, Corollary 1 and Theorem 1. Kills: a sharpness that is too small for its bound."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory.ngram_recall import (
    associative_recall_layer,
    margin,
    ngram_recall_layer,
    ngram_recall_model,
    separating_taps,
    set_ngram_recall,
    smallest_distance,
)
from jaxzoo.tasks.ngram_recall import nar
from tests.experiments.theory.recall import applied, likeliest, orthonormal_rows, unit_rows


def accuracy(task, model, delay, *, n, seed=0):
    """Share of right answers; token 0 is the row of zeros of the value delay."""
    batch = task.labelled(seed, np.arange(n))
    tokens = jnp.pad(batch.tokens, ((0, 0), (0, int(delay == "value"))))
    last = jnp.full((n, 1), tokens.shape[1] - 1, jnp.int32)
    return (likeliest(model, tokens, last) == batch.targets).mean()


def instances(n_gram, length, *, vocab_size, seed, n=64):
    """Definition 3, by itself: random tokens whose query stands before exactly once, overlaps allowed, and ends
    anywhere; after it stand tokens of no account. Tokens (n, length), ends of the queries and values."""
    rng, rows = np.random.default_rng(seed), []
    while len(rows) < n:
        row, end = rng.integers(vocab_size, size=length), int(rng.integers(n_gram, length))
        start = int(rng.integers(end - n_gram + 1))
        row[end - n_gram + 1 : end + 1] = row[start : start + n_gram]
        query = row[end - n_gram + 1 : end + 1]
        found = [i for i in range(end - n_gram + 1) if (row[i : i + n_gram] == query).all()]
        if len(found) == 1:
            rows.append((row, end, row[found[0] + n_gram]))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def errors(layer, embeddings, tokens, ends, values, *, delay="key"):
    """Distance of each output from the embedding of the value."""
    x, each = np.pad(embeddings[tokens], ((0, 0), (0, 1), (0, 0))), np.arange(len(tokens))
    if delay == "value":
        ends = ends + 1
        x[each, ends] = 0.0
    y = np.asarray(applied(layer, jnp.asarray(x, jnp.float32)))
    return np.linalg.norm(y[each, ends] - embeddings[values], axis=1)


def printed(x, taps, c, delay):
    """Theorem 1 as printed, in float64: `f(X)` for X of (t, d), with the acausal D_{-1} and no causal mask."""
    norm = lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)  # noqa: E731

    def filtered(taps, first):
        y = np.zeros_like(x)
        for i in range(len(x)):
            for a, tap in enumerate(taps, start=first):
                if 0 <= i - a < len(x):
                    y[i] += tap * x[i - a]
        return norm(y)

    queries = filtered(taps, 0)
    keys, values, factor = (filtered(taps, 1), x, 1) if delay == "key" else (queries, filtered([1.0], -1), 2)
    scores = c * keys @ queries[-1]
    weights = np.exp(scores - scores.max())
    return factor * values.T @ (weights / weights.sum())


@pytest.mark.full
@pytest.mark.parametrize("delay", ["key", "value"])
def test_the_module_is_the_theorem(delay):
    """Kills: a filter that is off by one or reversed, a missing norm or factor, W_v = 1 with the value delay, a causal
    form that is another function. Random sequences, at a c that does not saturate."""
    x, taps, c = unit_rows(9, 6), np.array([-0.7, 1.3, 0.4]), 3.0
    layer = ngram_recall_layer(unit_rows(4, 6, seed=1), separating_taps(3, seed=0), length=9)
    set_ngram_recall(layer, taps, c=c, delay=delay)
    read, empty = x, np.zeros((1, 6))
    if delay == "value":
        read, x = np.concatenate([x, empty]), np.concatenate([empty, x])  # as the docstring says
    found = applied(layer, jnp.asarray(read, jnp.float32)[None])[0, -1]
    np.testing.assert_allclose(found, printed(x, taps, c, delay), rtol=0, atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
def test_corollary_1(seed):
    """Kills: a key delay of 0 or 2, and a c that is too small for its own bound: outputs within eps/2 of the value."""
    tokens, ends, values = instances(1, 200, vocab_size=64, seed=seed)
    embeddings = unit_rows(64, 12, seed=seed)
    layer = associative_recall_layer(embeddings, length=200)
    assert errors(layer, embeddings, tokens, ends, values).max() < smallest_distance(embeddings) / 2


@pytest.mark.parametrize(
    ("n_gram", "delay"),
    [
        (2, "key"),
        (2, "value"),
        *(pytest.param(n, delay, marks=pytest.mark.full) for n in (1, 3) for delay in ("key", "value")),
    ],
)
def test_theorem_1_any_embeddings(n_gram, delay):
    """Kills: a c_0 that holds for orthogonal embeddings alone, and W_v = 1 with the value delay: random embeddings in
    fewer dimensions than tokens, random filters, outputs within eps/2 of the value."""
    for seed in range(3):
        vocab_size = 64 if n_gram == 1 else 12
        tokens, ends, values = instances(n_gram, 200, vocab_size=vocab_size, seed=seed)
        embeddings, taps = unit_rows(vocab_size, 10, seed=seed), separating_taps(n_gram, seed=seed)
        layer = ngram_recall_layer(embeddings, taps, length=200, delay=delay)
        found = errors(layer, embeddings, tokens, ends, values, delay=delay)
        assert found.max() < smallest_distance(embeddings) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_gram", "length", "delay"),
    [(2, 4094, "value"), (1, 4095, "key")],
)
def test_theorem_1_at_4096(n_gram, length, delay):
    """Kills: what fails on long sequences only, or in a language model only: a norm that undoes another length, a
    residual that answers with the query."""
    vocab_size = {1: 8192, 2: 112, 3: 32}[n_gram]
    embeddings = unit_rows(vocab_size, 64) if n_gram == 1 else orthonormal_rows(vocab_size)
    model = ngram_recall_model(embeddings, separating_taps(n_gram, seed=1), length=length, delay=delay)
    assert accuracy(nar(length, n_gram, vocab_size=vocab_size), model, delay, n=4) == 1


def test_margin_by_hand():
    """Kills: a margin over grams of one length only, over equal grams too, or above 1; orthogonal embeddings.
    The closest of F = (1, 1/2) are `b a` and `a a`, those of F = (-1/2, 1) `a b` and `a a`."""
    embeddings = orthonormal_rows(5)
    assert margin(embeddings, np.array([2.0])) == pytest.approx(1)
    assert margin(embeddings, np.array([1.0, 0.5]), from_start=False) == pytest.approx(1 - 1 / np.sqrt(1.25))
    assert margin(embeddings, np.array([1.0, 0.5])) == pytest.approx(0)
    assert margin(embeddings, np.array([-0.5, 1.0])) == pytest.approx(1 - 1 / np.sqrt(1.25))
    uneven = embeddings + 0.01 * np.eye(5)[0]
    uneven /= np.linalg.norm(uneven, axis=1, keepdims=True)
    assert margin(uneven, np.array([-0.5, 1.0])) == pytest.approx(1 - 1 / np.sqrt(1.25), rel=0.3)
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert margin(opposite, np.array([1.0, 0.5]), from_start=False) == pytest.approx(0)
