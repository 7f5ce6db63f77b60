"""One filter and bound pairs solve MQAR. Kills: an answer from the wrong pair."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.theory.shared_filter_recall import build, width
from jaxzoo.tasks import mqar

PAIRS = 8
DISTANCES = PAIRS + 2
"""Distances of the queries, and a few between equal values."""


@functools.partial(jax.jit, static_argnums=0)
def predict(definition, parameters, batch):
    model = nnx.merge(definition, parameters)
    y = jnp.take_along_axis(model(batch.tokens), batch.positions[..., None], axis=1)
    return model.logits(y).argmax(-1)


def share_right(model, task, batch_size):
    batch = task.labelled(0, np.arange(batch_size))
    return (predict(*nnx.split(model), batch) == batch.targets).mean()


@pytest.fixture(scope="module")
def model():
    return build(8192, DISTANCES)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "batch_size"), [(64, 32), (4096, 1)])
def test_every_key_is_answered(model, length, batch_size):
    """Kills: pairs of a value and the key after it, the key in the place of the value, a filler that answers; at the
    same width of 1,668 for 64 and 4096 tokens."""
    assert model.embedding.shape == (8192, 2 * width(8192, DISTANCES, 1e-6)) == (8192, 1668)
    assert share_right(model, mqar.paper(length, PAIRS), batch_size) == 1


def test_width_follows_the_bound():
    """Kills: a width below the bound, or far above: about 4 (m - 1) log(vocab / error), and no error that is none."""
    assert width(8192, 101, 1e-6) == pytest.approx(400 * np.log(8192e6), rel=0.01)
    assert width(8192, 1, 1e-6) > 0
    with pytest.raises(ValueError, match="error=0 must be above 0 and below 1"):
        build(400, DISTANCES, error=0)
