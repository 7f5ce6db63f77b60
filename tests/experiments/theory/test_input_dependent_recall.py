"""Zoology, Thm 4.5 and H.38: input-dependent filters solve MQAR. Kills: a wrong distance."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from experiments.theory.input_dependent_recall import NOTHING, SMALLEST, answers, build, encode
from jaxzoo.models.accounting import count_parameters
from tests.experiments.theory.triples import solve


@functools.partial(jax.jit, static_argnums=0)
def apply(definition, parameters, u, context):
    return nnx.merge(definition, parameters)(u, context)


def run(layers, instance, n_tokens):
    return apply(*nnx.split(layers), *encode(*instance, n_tokens))


def found(layers, instance, n_tokens):
    return answers(run(layers, instance, n_tokens))


def draw(distances, *, batch_size, n_triples, n_tokens, shares=None, asked=0.9):
    """Distinct keys, and queries for the key of `distances` triples ago; some ask for a key that never comes."""
    rng = np.random.default_rng(n_triples)
    order = np.array([rng.permutation(n_tokens) for _ in range(batch_size)])
    keys, absent = order[:, :n_triples], order[:, n_triples:]
    values = rng.integers(0, n_tokens, keys.shape)
    back = rng.choice(distances, keys.shape, p=shares)
    j = np.arange(n_triples)[None, :] - back
    never = (j < 0) | (rng.random(j.shape) > asked)
    nobody = np.take_along_axis(absent, rng.integers(0, absent.shape[1], j.shape), axis=1)
    queries = np.where(never, nobody, np.take_along_axis(keys, np.maximum(j, 0), axis=1))
    return (keys, values, queries), back


@pytest.mark.slow
@pytest.mark.parametrize("filter", ["programmatic", "autocorrelation"])
@pytest.mark.parametrize(
    ("distance", "n_triples"),
    [(17, 30), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((1, 2), (1, 30), (120, 200)))],
)
def test_one_distance(filter, distance, n_triples):
    """Kills: key and value kernels mixed up, a shift by one too many, an answer to a query that no key matches, a
    distance that wraps around."""
    c = n_triples + 20
    instance, _ = draw([distance], batch_size=2, n_triples=n_triples, n_tokens=c)
    expected = solve(*instance)
    assert (expected != NOTHING).any()
    assert (expected == NOTHING).any()
    np.testing.assert_array_equal(found(build(c, filter=filter), instance, c), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distances", "shares", "n_triples", "spare"),
    [
        ((1, 2), (0.5, 0.5), 20, 0),
        pytest.param((2, 9, 5), (0.4, 0.3, 0.3), 60, 1, marks=pytest.mark.full),
        pytest.param((2, 9), (0.97, 0.03), 340, 1, marks=pytest.mark.full),
        pytest.param((3, 40, 110, 64), (0.25,) * 4, 340, 0, marks=pytest.mark.slow),
    ],
)
def test_few_distances(distances, shares, n_triples, spare):
    """Kills: one filter for all distances, or one y, whose values add up; layers that order equally strong distances in
    different ways; an answer that drowns in rounding. Rows are 60 to 1,020. A spare shift does no harm, and is needed
    at 3 %: keys that are asked for by both distances make lag 7 of the queries as strong."""
    c = n_triples + 20
    instance, _ = draw(distances, batch_size=2, n_triples=n_triples, n_tokens=c, shares=shares)
    outputs, expected = run(build(c, n_shifts=len(distances) + spare), instance, c), solve(*instance)
    np.testing.assert_array_equal(answers(outputs), expected)
    channels = (np.abs(np.asarray(outputs)[:, 2::3]) > SMALLEST).sum(-1)
    np.testing.assert_array_equal(channels, expected != NOTHING)


@pytest.mark.full
def test_more_distances_than_shifts():
    """Kills: a promise that is too large: of three distances, 60, 30 and 10 % of the queries, 2 shifts answer the first
    two, and leave the third without an answer, not with a wrong one."""
    c = 220
    instance, back = draw([2, 9, 5], batch_size=2, n_triples=200, n_tokens=c, shares=[0.6, 0.3, 0.1])
    expected = solve(*instance)
    np.testing.assert_array_equal(found(build(c, n_shifts=2), instance, c), np.where(back == 5, NOTHING, expected))
    assert ((back == 5) & (expected != NOTHING)).sum() > 10


@pytest.mark.full
def test_parameters():
    """Kills: parameters that grow with the length, or with t more than t times: two projections of width 3 c and two of
    4 c for each distance, with b1 and b2."""
    for t in (1, 3):
        assert count_parameters(build(10, n_shifts=t)) == t * (2 * 30**2 + 2 * 30 + 2 * 40**2 + 2 * 40)
