"""Batch shapes without data. Kills: a plan for another program than the run's."""

import jax
import numpy as np
import pytest

from jaxzoo.data.base import Batch, DataConfig
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig


class OwnConfig(DataConfig):
    """A user's data, which say nothing of their shapes."""

    def build(self, *, batch_size, valid_batch_size):
        return self

    def train(self):
        yield Batch(tokens=np.zeros((4, 7), np.int32), targets=np.zeros((4, 3), np.int32))


SHORT, LONG = (Examples(task=MQARConfig(vocab_size=64, length=n, n_pairs=n // 8), n_examples=8) for n in (16, 32))
CONFIGS = {
    "text": TextDataConfig(length=16, valid_tokens=64),
    "packed text": TextDataConfig(length=16, valid_tokens=64, packing="segments"),
    "own": OwnConfig(),
    "recall": RecallDataConfig(train=(LONG,), valid=(SHORT,)),
}


@pytest.fixture(scope="module", autouse=True)
def text(tmp_path_factory):
    """A small text in place of the standard library."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("so it goes. " * 100)
    for name in ("text", "packed text"):
        CONFIGS[name] = type(CONFIGS[name])(**{**vars(CONFIGS[name]), "path": str(path)})


@pytest.mark.full
@pytest.mark.parametrize("name", CONFIGS)
def test_as_the_data_have_it(name):
    """Kills: positions or segment ids that are missing, and dtypes that differ: another program would be planned."""
    config = CONFIGS[name]
    batch = next(config.build(batch_size=4, valid_batch_size=4).train())
    planned, planned_fields = jax.tree.flatten(config.abstract_batch(4))
    arrays, fields = jax.tree.flatten(batch)
    assert planned_fields == fields
    assert [(x.shape, x.dtype) for x in planned] == [(x.shape, x.dtype) for x in arrays]


def test_longest_of_a_mixture():
    """Kills: a plan for the short examples."""
    mixture = RecallDataConfig(train=(SHORT, LONG), valid=(SHORT,))
    assert mixture.abstract_batch(4).tokens.shape == (4, 32)
