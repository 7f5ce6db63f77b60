"""Zoology, Prop. 4.3 and H.27: attention solves MQAR. Kills: a shift by one token."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from experiments.theory.attention_recall import NOTHING, answers, build, encode
from jaxzoo.tasks import mqar
from tests.experiments.theory.triples import draw, solve

LONGEST = 4096
"""Rows that one set of parameters is built for."""


def run(layers, u):
    definition, parameters = nnx.split(layers)
    return apply(definition, parameters, u)


@functools.partial(jax.jit, static_argnums=0)
def apply(definition, parameters, u):
    return nnx.merge(definition, parameters)(u)


@pytest.mark.parametrize(
    ("n_tokens", "n_triples"),
    [
        (5, 40),
        *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((2, 1), (5, 1), (64, 1364))),
        pytest.param(17, 150, marks=pytest.mark.slow),
    ],
)
def test_every_query_is_answered(n_tokens, n_triples):
    """Kills: a shift by one too many, heads mixed up, a query that sees its own triple or a later one, no answer where
    there is a key, an answer where there is none, a peak that fades or comes again far away. At c = 64 the rows are
    4095; parameters are those of 4096 rows at every length."""
    rng = np.random.default_rng(n_triples)
    instance = draw(rng, batch_size=1 if n_triples > 1000 else 8, n_triples=n_triples, n_tokens=n_tokens)
    expected = solve(*instance)
    assert (expected == NOTHING).any()
    assert n_triples == 1 or (expected != NOTHING).mean() > 0.5
    u = encode(*instance, n_tokens)
    outputs = run(build(n_tokens, LONGEST), u)
    np.testing.assert_array_equal(answers(outputs), expected)
    one_hot = (expected[..., None] == np.arange(n_tokens)).astype(np.float32)
    np.testing.assert_allclose(outputs[:, 5::3, :n_tokens], one_hot, rtol=0, atol=2e-3)


@pytest.mark.full
def test_definition_3_1_by_the_papers_reduction():
    """Kills: an own triple that is seen: in `(x_i, x_{i+1}, x_i)` every query is its own triple's key. The tokens are
    those of the MQAR task, whose labels are the truth."""
    config = mqar.paper(length=32, n_pairs=6, vocab_size=40)
    batch = config.labelled(0, np.arange(16))
    x = np.asarray(batch.tokens)
    triples = (x, np.concatenate([x[:, 1:], np.zeros_like(x[:, :1])], axis=1), x)
    found = answers(run(build(40, LONGEST), encode(*triples, 40)))
    np.testing.assert_array_equal(np.take_along_axis(found, np.asarray(batch.positions), axis=1), batch.targets)


def test_errors_that_no_sharpness_gives():
    """Kills: a logarithm of 0, and an infinite or negative sharpness."""
    for error in (0.0, 0.25):
        with pytest.raises(ValueError, match=f"error={error} must be above 0 and below 1/4"):
            build(4, 16, error=error)
