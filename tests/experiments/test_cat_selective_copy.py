"""CAT's selective copying: what it trains, its claims on rows made by hand, and its picture."""

from typing import Any

import pytest

from experiments.cat_selective_copy import NAMES, draw, experiment
from jaxzoo.sweep import Results
from tests.experiments.hand_made import curves, distinct_runs, row, verdict
from tests.pallas_kernels.shared import full, slow

pytestmark = pytest.mark.full


def run(model, signals, accuracy, d_model=32, learning_rate=0.01):
    return row(accuracy, d_model=d_model, signals=signals, model=model, learning_rate=learning_rate, seed=0)


@pytest.mark.parametrize("name", [slow(name) if name == "paper" else full(name) for name in experiment.scales])
def test_every_point_has_a_run_of_its_own(name):
    """Kills: an axis that the config ignores, a size that no task has."""
    distinct_runs(experiment.scales[name]())


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_models_and_task(name):
    """Kills: a second layer for CAT, positions that are missing, a long filter that is short or on keys too."""
    point = {"d_model": 64, "signals": 8, "model": name, "learning_rate": 1e-2, "seed": 1}
    config: Any = experiment.scales["paper"]().config(point)
    mixer = config.model.pattern[0]
    assert config.model.n_layers == (1 if "CAT" in name else 2)
    assert config.model.max_positions == (72 if name in ("CAT, positions", "attention") else None)
    if "CAT" in name:
        assert mixer.n_taps == (72 if name == "CAT, long filter" else 3)
        assert mixer.filtered == (("queries",) if name == "CAT, long filter" else ("queries", "keys", "values"))
    (train,) = config.data.train
    task = train.task
    assert (task.length, task.prompt_length, task.n_signals, task.n_signal_tokens, task.n_noise) == (72, 64, 8, 64, 64)
    assert (train.n_examples, config.train.seed, config.model.d_model) == (100_000, 1, 64)


def test_on_par():
    """Kills: the best form at each place in place of one form, a form of CAT as its own rival, a lead that is asked."""
    rows = [run("CAT", 4, 0.9), run("CAT", 8, 0.5), run("CAT, positions", 4, 0.8), run("CAT, positions", 8, 0.9)]
    rows += [run("attention", 4, 0.9), run("attention", 8, 0.7)]
    found = verdict(experiment, "on-par", rows)
    assert found.verdict == "not held"
    assert "CAT: ahead of attention by -0.20 (d = 32, 8 signals) to 0.00 (d = 32, 4 signals)" in found.numbers
    even = [run("CAT, long filter", 4, 0.895), run("CAT, long filter", 8, 0.7)]
    assert verdict(experiment, "on-par", rows + even).verdict == "held"
    assert verdict(experiment, "on-par", rows[:4]).verdict == "not tested"


def test_each_construction_is_judged_alone():
    """Kills: one construction for the other, one number of signals for all."""
    rows = [run("CAT, positions", 4, 1.0), run("CAT, positions", 8, 0.99), run("CAT", 4, 0.2)]
    assert verdict(experiment, "positions", rows).verdict == "held"
    assert verdict(experiment, "positions", [*rows, run("CAT, positions", 16, 0.9)]).verdict == "not held"
    assert verdict(experiment, "long", rows).verdict == "not tested"
    assert verdict(experiment, "long", [run("CAT, long filter", 8, 0.4)]).numbers.endswith("(d = 32, 8 signals)")


def test_mamba():
    """Kills: a mean over places, a comparison with the weakest form."""
    rows = [run("CAT", 4, 0.9), run("CAT, positions", 4, 1.0), run("CAT", 8, 0.3), run("Mamba", 4, 1.0)]
    assert verdict(experiment, "mamba", rows).verdict == "held"
    assert verdict(experiment, "mamba", [*rows, run("Mamba", 8, 0.2)]).verdict == "not held"
    assert verdict(experiment, "mamba", rows[:3]).verdict == "not tested"


def test_the_picture():
    """Kills: the worst rate, panels that are exchanged, a model without its curve."""
    rows = [run("CAT", 4, 0.5), run("CAT", 4, 0.6, learning_rate=0.003), run("CAT", 8, 0.4), run("Mamba", 8, 0.7, 64)]
    panels = {panel.get_title(): curves(panel) for panel in draw(Results(rows)).axes}
    assert panels == {"model width 32": {"CAT": ([4, 8], [0.6, 0.4])}, "model width 64": {"Mamba": ([8], [0.7])}}
