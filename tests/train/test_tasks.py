"""Every task in the train step. Kills: a batch that the trainer cannot take."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxzoo.config.config_io import from_json, to_json
from jaxzoo.data.base import UNLABELLED
from jaxzoo.evals.validation import Validation
from jaxzoo.tasks.demos import DEMOS
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Session
from jaxzoo.train.speed import train_flops


@pytest.mark.slow
@pytest.mark.parametrize("name", DEMOS)
def test_every_task_fits_the_train_step(name, small_config):
    """Kills: a batch that the trainer cannot take, with answers at one token or at all, or without any answer; a task
    whose run nobody can read."""
    fields = {"cumulative": True} if name == "majority" else {}
    task = DEMOS[name].build(**fields)
    data = RecallDataConfig(train=(Examples(task=task, n_examples=32),), valid=(Examples(task=task, n_examples=8),))
    fields = {"max_length": max(32, task.length), "vocab_size": 257}
    if "pair_values" in task.model_fields:
        fields["vocab_size"] = task.vocab_size
    model = dataclasses.replace(small_config.model, **fields, **task.model_fields)
    config = dataclasses.replace(small_config, model=model, data=data)
    session = Session(config)
    batch = next(session.stream())
    assert np.any(np.asarray(batch.targets) != UNLABELLED)
    with jax.set_mesh(session.mesh):
        session.train_step.lower(session.abstract_state, batch, "cpu")
        Validation(session).eval_step.lower(
            session.abstract_state.variables, session.dataset.valid()[0].batch(0), "cpu"
        )
    assert train_flops(config, 1) > 0
    assert from_json(to_json(config), RunConfig) == config
