"""The search of learning rates. Kills: seeds spent on a rate that has lost."""

import dataclasses
import json

import pytest

from jaxzoo.sweep.cost import expected
from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.utils.checksums import add_checksum
from tests.sweep.small import FACTS, open_small


def finish(sweep, accuracy, **where):
    """Writes results of the runs at some coordinates."""
    for point, task in sweep.points:
        if where.items() <= point.items():
            metrics = {} if accuracy is None else {"valid/accuracy": accuracy}
            status = "diverged" if accuracy is None else "finished"
            sweep.directory.write_result(task.id, {**FACTS, "id": task.id, "status": status, "metrics": metrics})


def test_the_best_rates_run_with_all_seeds(tmp_path):
    """Kills: seeds of a rate that has lost, a choice before all rates have run, a place that waits for another, a rate
    that diverged and is chosen."""
    opened = open_small(tmp_path, RATES="(1e-3, 1e-2, 1e-1)", SEEDS="(0, 1, 2)")
    sweep = Sweep(opened.experiment, dataclasses.replace(opened.scale, all_seeds=1), SweepDirectory(tmp_path / "out"))
    points = {task.id: point for point, task in sweep.points}

    def left():
        """Model, rate and seed of the next runs, and the number that waits."""
        now, later = sweep.left()
        return [tuple(points[task.id].values()) for task in now], len(later)

    first = [(model, rate, 0) for model in ("attention", "convolution") for rate in (1e-3, 1e-2, 1e-1)]
    assert left() == (first, 12)
    assert sweep.n_runs == len(expected(sweep)) == 2 * (3 + 2)
    finish(sweep, 0.5, model="attention", learning_rate=1e-3, seed=0)
    finish(sweep, None, model="attention", learning_rate=1e-2, seed=0)
    assert left() == (first[2:], 12)
    finish(sweep, 0.7, model="attention", learning_rate=1e-1, seed=0)
    assert left() == ([("attention", 1e-1, 1), ("attention", 1e-1, 2), *first[3:]], 6)
    finish(sweep, 0.9, model="attention", learning_rate=1e-1)
    finish(sweep, 0.2, model="convolution")
    assert left() == ([], 0)


def test_verdicts_rest_on_four_rates_and_three_seeds(tmp_path):
    """Kills: a verdict that rests on few rates or seeds and does not say so; a rate counted once per seed."""
    found = {}
    four, three = "(1e-3, 3e-3, 1e-2, 2e-2)", "(0, 1, 2)"
    for rates, seeds in (("(1e-3, 1e-2)", "(0,)"), (four, "(0,)"), (four, three), ("(1e-3,)", three)):
        sweep = open_small(tmp_path, RATES=rates, SEEDS=seeds)
        found[rates, seeds] = sweep.about("file", "scale").untuned
    assert list(found.values()) == ["2 learning rates, 1 seed", "1 seed", "", "1 learning rate"]
    few = dataclasses.replace(sweep.scale, few_rates="as published")
    assert dataclasses.replace(sweep, scale=few).untuned == ""


def test_no_run_waits_where_no_rate_can_be_dropped(tmp_path):
    """Kills: a search among as many rates as run with all seeds, which halves the runs that a GPU updates at once."""
    opened = open_small(tmp_path, RATES="(1e-3, 1e-2)", SEEDS="(0, 1, 2)")
    sweep = Sweep(opened.experiment, dataclasses.replace(opened.scale, all_seeds=2), SweepDirectory(tmp_path / "out"))
    now, later = sweep.left()
    assert (len(now), later, len(expected(sweep))) == (12, [], 12)


def test_damaged_results_are_one_line(tmp_path):
    """Kills: a traceback from a result, a progress report or a row that has other types or lacks a field."""
    sweep = open_small(tmp_path)
    task = sweep.specs[0].id
    facts = {**FACTS, "metrics": {"valid/accuracy": 0.25}}
    other = json.dumps(add_checksum(facts)).replace("0.25", "0.75")
    wrong = [json.dumps(add_checksum(each)) for each in ({"id": 3}, {**facts, "metrics": {"valid/accuracy": "high"}})]
    for damaged in ("[" * 100_000, *wrong, json.dumps(facts), other, "3", "{"):
        (tmp_path / f"out/results/{task}.json").write_text(damaged)
        with pytest.raises(ValueError, match=rf"{task}\.json: .*remove it: the run is made again") as caught:
            sweep.rows()
        assert "\n" not in str(caught.value)
    sweep.directory.running(task, "json").write_text("[3]")
    assert sweep.directory.queue().progress() == {}
    sweep.directory.about.write_text('{"experiment": 3}')
    with pytest.raises(ValueError, match=r"sweep\.json: "):
        sweep.directory.read_about()


def test_a_sweep_is_not_written_through_links(tmp_path):
    """Kills: runs that are written outside of the directory of their sweep."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/runs").symlink_to(tmp_path)
    SweepDirectory(tmp_path / "out").write_about(About("small.py", "laptop"))
    with pytest.raises(ValueError, match="runs must not be a link"):
        SweepDirectory(tmp_path / "out").create(About("small.py", "laptop"))
