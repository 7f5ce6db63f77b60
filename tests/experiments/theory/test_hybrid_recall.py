"""Short convolution and attention solve MQAR. Kills: an answer from the wrong place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.mqar.attention import config as trained
from experiments.theory.hybrid_recall import build, codes
from jaxzoo.models.accounting import abstract_model
from jaxzoo.tasks import mqar

LONGEST = 4096


def share_right(model, task, batch_size):
    batch = task.labelled(1, np.arange(batch_size))
    return (predict(*nnx.split(model), batch) == batch.targets).mean()


@functools.partial(jax.jit, static_argnums=0)
def predict(definition, parameters, batch):
    model = nnx.merge(definition, parameters)
    features = jnp.take_along_axis(model.features(batch.tokens), batch.positions[..., None], axis=1)
    return model.logits(features).argmax(-1)


@pytest.fixture(scope="module")
def model():
    return build(8192, LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "batch_size"),
    [
        (mqar.paper(4, 1), 64),
        (mqar.paper(64, 16), 64),
        pytest.param(mqar.paper(64, 16, fillers="random"), 64, marks=pytest.mark.slow),
        (mqar.literal(64, 16), 64),
        (mqar.paper(4096, 1024), 1),
        pytest.param(mqar.paper(1024, 256, fillers="random"), 16, marks=pytest.mark.slow),
    ],
)
def test_every_key_is_answered(model, task, batch_size):
    """Kills: the token after the query instead of the one after the key, a key or the query itself as answer, codes
    that collide, a softmax that thins out over 4096 tokens. The model is one and the same at all lengths."""
    assert share_right(model, task, batch_size) == 1


@pytest.mark.full
def test_the_model_is_the_trained_one(model):
    """Kills: another model than that of configs/mqar/attention.py: names and shapes of all parameters are equal."""
    state = nnx.to_flat_state(nnx.state(abstract_model(trained.model)))
    expected = {path: leaf.shape for path, leaf in state}
    assert {path: leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(model))} == expected


def test_codes():
    """Kills: equal or opposite codes, and codes with a mean: words of 4, 16 and 32 signs."""
    for count, w in ((3, 4), (435, 16), (1000, 32)):
        code = codes(count)
        assert code.shape == (count, w)
        np.testing.assert_array_equal(np.abs(code), 1)
        np.testing.assert_array_equal(code.sum(1), 0)
        products = np.abs(code @ code.T)
        assert products[~np.eye(count, dtype=bool)].max() <= w / 2


def test_errors_that_no_sharpness_gives():
    """Kills: a logarithm of 0, and values that the other codes drown."""
    for error in (0.0, 1 / 28):
        with pytest.raises(ValueError, match="must be above 0 and below 1/28"):
            build(9, 16, error=error)
