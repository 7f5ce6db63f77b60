"""CAT, Figure 5: points and programs. Kills: another protocol, a program per learning rate."""

import dataclasses
from typing import Any

import pytest

from experiments.cat_figure5 import experiment
from jaxzoo.models.presets import mqar_attention, mqar_cat, mqar_mamba
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from tests.experiments.hand_made import row

pytestmark = pytest.mark.full


def run(model, task, d_model, length, accuracy, seed=0):
    return row(accuracy, task=task, d_model=d_model, length=length, model=model, learning_rate=0.01, seed=seed)


def test_mamba_of_one_layer():
    """Kills: a second layer for it, another width or task than the Mamba of two layers has."""
    scale = experiment.scales["device"]()
    where = {"task": "MQAR", "d_model": 64, "length": 128, "learning_rate": 1e-2, "seed": 0}
    one, two = (scale.config({"model": name, **where}) for name in ("Mamba, 1 layer", "Mamba"))
    assert (one.model.n_layers, two.model.n_layers) == (1, 2)
    assert dataclasses.replace(one, model=dataclasses.replace(one.model, n_layers=2)) == two
    assert len(scale.points) == 2 * 3 * 3 * 8 * 2


def test_the_papers_scale():
    """Kills: a second layer for CAT, another size, protocol or task than the paper has."""
    scale = experiment.scales["paper"]()
    assert len(scale.points) == 2 * 3 * 4 * 7 * 4 * 3
    where = {"d_model": 128, "length": 512, "learning_rate": 1e-2, "seed": 2}
    presets = {"CAT": mqar_cat, "attention": mqar_attention, "Mamba": mqar_mamba}
    for name, preset in presets.items():
        config: Any = scale.config({"model": name, "task": "MQNAR", **where})
        assert config.model == dataclasses.replace(preset(d_model=128, length=512), mlp_bias=True)
        assert config.model.n_layers == (1 if name == "CAT" else 2)
        assert (config.optimizer.learning_rate, config.train.seed, config.train.batch_size) == (1e-2, 2, 8)
        assert config.train.steps == 64 * 100_000 // 8
    (train,), (valid,) = config.data.train, config.data.valid
    assert (train.n_examples, valid.n_examples, train.task) == (100_000, 3_000, valid.task)
    assert isinstance(train.task, NGramRecallConfig)
    assert (train.task.length, train.task.n_pairs, train.task.n_gram, train.task.vocab_size) == (512, 64, 2, 8192)
    config = scale.config({"model": "CAT", "task": "MQAR", **where, "length": 64})
    (train,) = config.data.train
    assert isinstance(train.task, MQARConfig)
    assert (train.task.length, train.task.n_pairs) == (64, 4)


@pytest.mark.full
def test_one_program_for_all_rates_and_seeds():
    """Kills: a rate or a seed that changes the program, or a model that shares one with another."""
    scale = experiment.scales["laptop"]()
    programs = {RunSpec.of(scale, point).program for point in scale.points}
    assert len(programs) == len(
        {tuple(point[a] for a in ("task", "d_model", "length", "model")) for point in scale.points}
    )
