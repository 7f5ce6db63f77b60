"""CAT, Figure 5: its points, what its claims say of rows made by hand, and its picture."""

import dataclasses
from typing import Any

import pytest

from experiments.cat_figure5 import draw, experiment
from jaxzoo.models.presets import mqar_attention, mqar_cat, mqar_mamba
from jaxzoo.sweep import Results
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from tests.experiments.hand_made import curves, distinct_runs, row, verdict

pytestmark = pytest.mark.full


def run(model, task, d_model, length, accuracy, seed=0):
    return row(accuracy, task=task, d_model=d_model, length=length, model=model, learning_rate=0.01, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", experiment.scales)
def test_every_point_has_a_run_of_its_own(name):
    """Kills: an axis that the config ignores, a size that no task has."""
    distinct_runs(experiment.scales[name]())


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


def test_all():
    """Kills: a mean over places in place of the worst, forms that are mixed."""
    rows = [run("CAT", "MQAR", 32, 16, 1.0), run("CAT", "MQAR", 16, 16, 0.99), run("CAT", "MQNAR", 32, 16, 0.5)]
    assert verdict(experiment, "all-mqar", rows).verdict == "held"
    assert verdict(experiment, "all-mqnar", rows).numbers == "CAT: 0.50 at least (d = 32, N = 16)"
    forms = [run("CAT", "MQAR", 64, 16, 0.9), run("CAT, 2 heads", "MQAR", 32, 16, 0.8)]
    assert verdict(experiment, "all-mqar", rows + forms[:1]).verdict == "not held"
    assert verdict(experiment, "all-mqar", rows + forms[1:]).verdict == "held"
    assert verdict(experiment, "all-mqar", rows + forms).verdict == "not held"
    assert verdict(experiment, "all-mqar", [run("Mamba", "MQAR", 32, 16, 1.0)]).verdict == "not tested"


def test_ahead():
    """Kills: a lead of noise, one that is lost at one place, models that never meet CAT, LinCAT as a rival."""
    rows = [run("CAT", "MQAR", 32, n, 1.0) for n in (16, 32)]
    near = [run("Based", "MQAR", 32, 16, 1.0), run("Based", "MQAR", 32, 32, 0.9), run("LinCAT", "MQAR", 32, 32, 1.0)]
    found = verdict(experiment, "ahead-mqar", rows + near)
    assert found.verdict == "held"
    assert found.numbers == "CAT: ahead of Based by 0.00 (d = 32, N = 16) to 0.10 (d = 32, N = 32)"
    assert verdict(experiment, "ahead-mqar", [*rows, *near, run("Mamba", "MQAR", 32, 16, 0.995)]).verdict == "not held"
    lost = [run("CAT", "MQAR", 16, 16, 0.5), run("Based", "MQAR", 16, 16, 0.6)]
    assert verdict(experiment, "ahead-mqar", rows + near + lost).verdict == "not held"
    elsewhere = [run("Based", "MQAR", 64, 16, 0.5), run("Based", "MQNAR", 32, 16, 0.5)]
    assert verdict(experiment, "ahead-mqar", rows + elsewhere).verdict == "not tested"


def test_more_width():
    """Kills: a growth that is asked of one length alone, a verdict on a single width, halves that are mixed up, a mean
    over lengths that only one width has, a task that has short lengths alone."""
    narrow = [run("Mamba", "MQAR", 16, 16, 0.3), run("Mamba", "MQAR", 16, 64, 0.2)]
    wide = [run("Mamba", "MQAR", 32, 16, 0.9), run("Mamba", "MQAR", 32, 64, 0.3)]
    assert verdict(experiment, "width-mamba", narrow + wide).verdict == "held"
    assert verdict(experiment, "width-mamba", narrow + wide).numbers.endswith("0.25 at d = 16, 0.60 at d = 32")
    assert verdict(experiment, "short-mamba", narrow + wide).verdict == "held"
    late = [run("Mamba", "MQAR", 32, 16, 0.3), run("Mamba", "MQAR", 32, 64, 0.1)]
    assert verdict(experiment, "width-mamba", narrow + late).verdict == "not held"
    alike = [*narrow, run("Mamba", "MQAR", 32, 16, 0.3), wide[1]]
    assert verdict(experiment, "short-mamba", alike).verdict == "not held"
    begun = [run("Mamba", "MQNAR", 16, 16, 0.1), run("Mamba", "MQNAR", 32, 16, 0.9)]
    assert verdict(experiment, "short-mamba", alike + begun).verdict == "not held"
    assert verdict(experiment, "width-mamba", [*narrow, run("Mamba", "MQAR", 32, 16, 0.29)]).verdict == "not held"
    for name in ("width-mamba", "short-mamba", "width-based"):
        assert verdict(experiment, name, narrow).verdict == "not tested"
    assert verdict(experiment, "width-mamba", [narrow[0], wide[1]]).verdict == "not tested"


def test_rises():
    """Kills: a rise from one task, or one width, to another."""
    falls = [run("attention", "MQAR", 16, 16, 0.5), run("attention", "MQAR", 16, 32, 0.4)]
    elsewhere = [run("attention", "MQNAR", 32, 32, 0.9), run("attention", "MQNAR", 32, 16, 0.9)]
    assert verdict(experiment, "rises-attention", falls + elsewhere).verdict == "not held"
    found = verdict(experiment, "rises-attention", [*falls, run("attention", "MQAR", 16, 64, 0.47)])
    assert found.verdict == "held"
    assert found.numbers == "attention: +0.07 at most, MQAR, d = 16, N = 32 to 64"
    assert verdict(experiment, "rises-attention", falls[:1]).verdict == "not tested"


def test_the_picture_has_a_row_a_task_and_a_column_a_width():
    """Kills: panels that are exchanged, the worst run of a place, a model without its curve."""
    rows = [run("CAT", "MQAR", d, n, d / 100 + n / 1000) for d in (16, 32) for n in (16, 32)]
    rows += [run("CAT", "MQNAR", 32, 16, 0.5), run("CAT", "MQNAR", 32, 16, 0.7, 1), run("Mamba", "MQNAR", 32, 16, 0.1)]
    figure = draw(Results(rows))
    panels = {panel.get_title(): curves(panel) for panel in figure.axes}
    assert list(panels) == [
        "MQAR, model width 16",
        "MQAR, model width 32",
        "MQNAR, model width 16",
        "MQNAR, model width 32",
    ]
    assert panels["MQAR, model width 32"] == {"CAT": ([16, 32], [0.336, 0.352])}
    assert panels["MQNAR, model width 16"] == {}
    assert panels["MQNAR, model width 32"] == {"CAT": ([16], [pytest.approx(0.6)]), "Mamba": ([16], [0.1])}
