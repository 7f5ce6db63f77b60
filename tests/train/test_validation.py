"""Validation metrics against sums by hand. Kills: padding that is scored."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.base import Batch, ValidSet
from jaxzoo.evals.validation import Scores, Validation, evaluate, pad_rows
from jaxzoo.train.session import Session

SEEN: list[tuple[int, ...]] = []


def fake_score(batch):
    """Reads a batch whose tokens say what a model would score: column 0 nats, column 1 hits of its labels."""
    SEEN.append(batch.tokens.shape)
    tokens, labels = np.asarray(batch.tokens, np.float64), np.asarray(batch.targets) != -100
    counts = labels.sum(axis=1)
    real = counts > 0
    accuracy = tokens[real, 1] / counts[real]
    return Scores(*map(jnp.float32, (tokens[real, 0].sum(), counts.sum(), accuracy.sum(), real.sum())))


def valid_set(slices, rows, labels, batch_size):
    """`rows` are (nats, hits); each row has `labels` labels."""
    tokens = np.array(rows, np.int32)

    def batch(i):
        part = tokens[i * batch_size : (i + 1) * batch_size]
        return Batch(tokens=jnp.asarray(part), targets=jnp.zeros((len(part), labels), jnp.int32))

    return ValidSet(slices, -(-len(rows) // batch_size), batch)


SETS = [
    valid_set({"length": 64, "pairs": 2}, [(1, 2), (2, 1), (3, 0)], labels=2, batch_size=2),
    valid_set({"length": 64, "pairs": 5}, [(7, 5)], labels=5, batch_size=2),
    valid_set({"length": 128, "pairs": 5}, [(4, 0), (6, 3)], labels=5, batch_size=2),
]


def test_metrics_by_hand():
    """Kills: a mean of set means, accuracy over labels instead of examples, a slice of the wrong sets,
    padding rows that count, a last batch that is dropped."""
    metrics = evaluate(fake_score, SETS, row_multiple=1)
    expected = {
        "valid/loss": 23 / (3 * 2 + 3 * 5),
        "valid/accuracy": (1 + 0.5 + 0 + 1 + 0 + 0.6) / 6,
        "valid/accuracy/length=64": (1 + 0.5 + 0 + 1) / 4,
        "valid/accuracy/length=128": 0.6 / 2,
        "valid/accuracy/pairs=2": 1.5 / 3,
        "valid/accuracy/pairs=5": 1.6 / 3,
    }
    assert metrics == pytest.approx(expected)
    assert list(metrics) == list(expected)


def test_text_metrics():
    """Kills: bits per token reported as bits per byte, nats as bits."""
    metrics = evaluate(fake_score, [SETS[0]._replace(slices={})], row_multiple=1, bytes_per_token=1.5)
    assert metrics == pytest.approx(
        {
            "valid/loss": 1.0,
            "valid/accuracy": 0.5,
            "valid/bits_per_byte": 1 / math.log(2) / 1.5,
            "valid/perplexity": math.e,
        }
    )


@pytest.mark.parametrize(
    ("multiple", "rows"), [(3, 3), *(pytest.param(n, m, marks=pytest.mark.full) for n, m in ((1, 2), (4, 4)))]
)
def test_every_batch_has_one_shape(multiple, rows):
    """Kills: a compilation more for a last batch, rows that the devices do not divide."""
    SEEN.clear()
    evaluate(fake_score, SETS[:1], row_multiple=multiple)
    assert [(rows, 2)] * 2 == SEEN


def test_validation_scores_the_validation_set(small_config):
    """Kills: training examples that are scored in place of those for validation, padding of the last batch (5 of 8
    rows) that counts, or rows that are left out; against the model's logits for all 13 examples, in float64."""
    session = Session(small_config)
    (examples,) = small_config.data.valid
    batch = examples.task.labelled(small_config.data.seed, np.arange(13), "test")
    with jax.set_mesh(session.mesh):
        variables = session.init_state().variables
        metrics = Validation(session).evaluate(variables)
        logits = jax.jit(lambda variables: session.blueprint.model(variables)(batch.tokens))(variables)
    rows = np.take_along_axis(np.asarray(logits, np.float64), np.asarray(batch.positions)[:, :, None], axis=1)
    targets = np.asarray(batch.targets)
    picked = np.take_along_axis(rows, targets[:, :, None], axis=2)[:, :, 0]
    assert metrics["valid/loss"] == pytest.approx((np.log(np.exp(rows).sum(-1)) - picked).mean(), rel=1e-5)
    assert metrics["valid/accuracy"] == pytest.approx((rows.argmax(-1) == targets).mean())


SHAPES = {"tokens": (2, 4), "targets": (2, 3), "positions": (2, 3), "segment_ids": (2, 4)}


def test_padding_has_no_labels():
    """Kills: padding rows with target 0, which is a token; a field that keeps its rows, or appears from nowhere."""
    ones = {name: np.ones(shape, np.int32) for name, shape in SHAPES.items()}
    batch = Batch(**ones)
    padded = pad_rows(batch, 5)
    for name, shape in SHAPES.items():
        x = getattr(padded, name)
        assert x.shape == (5, *shape[1:])
        np.testing.assert_array_equal(x[:2], 1)
        np.testing.assert_array_equal(x[2:], -100 if name == "targets" else 0)
    short = pad_rows(Batch(tokens=ones["tokens"], targets=ones["tokens"]), 5)
    assert (short.positions, short.segment_ids) == (None, None)
    assert pad_rows(batch, 2) is batch
