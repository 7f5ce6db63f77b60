"""Workers. Kills: a result of another run, a stopped run that begins again."""

import dataclasses
import functools
import json
import os
import shutil
import signal
import sys

import jax
import pytest

from jaxzoo.cli.sweep import report
from jaxzoo.parallel.agreement import StopSignals
from jaxzoo.sweep import Measurement
from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.sweep.queue import RunQueue
from jaxzoo.sweep.work import work
from jaxzoo.train.session import Session
from jaxzoo.utils.screen import Screen
from tests.sweep.small import FACTS, open_small


@pytest.fixture(scope="module", autouse=True)
def _one_device():
    """Uses one device, as a worker does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxzoo.sweep.work.Session", functools.partial(Session, devices=jax.devices()[:1]))
        yield


def make(sweep, *, vectorized: bool = False, name: str = "worker", **options) -> None:
    with StopSignals() as stop, RunQueue(sweep.directory, name) as queue:
        work(sweep, queue, workers=1, vectorized=vectorized, stop=stop, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Finished sweep of eight runs and two programs."""
    sweep = open_small(tmp_path_factory.mktemp("made"))
    make(sweep)
    return sweep


def test_a_result_says_what_was_asked_and_what_came_out(made):
    """Kills: results without their config or their cost, curves of another run, checkpoints that fill the disk."""
    rows = made.rows()
    assert len(rows) == 8
    for row, (point, task) in zip(rows, made.points, strict=True):
        assert row["point"] == point
        assert row["id"] == task.id
        assert row["config"]["optimizer"]["learning_rate"] == point["learning_rate"]
        assert row["config"]["train"]["seed"] == point["seed"]
        assert row["status"] == "finished"
        assert row["steps"] == 6
        assert [step for step, _ in row["curve"]["train"]] == [1, 2, 3, 4, 5, 6]
        assert [step for step, _ in row["curve"]["valid"]] == [3, 6]
        assert row["curve"]["valid"][-1][1] == pytest.approx(row["metrics"]["valid/accuracy"], abs=1e-5)
        assert row["flops"] > 0
        assert row["seconds"] > 0
        assert {"python", "jax"} <= row["versions"].keys()
    # 16 tokens of keys and values, and their number; two inputs of the convolution; the model's position
    assert {row["point"]["model"]: row["state_bytes"] for row in rows} == {
        "attention": 2 * 16 * 8 * 4 + 4 + 4,
        "convolution": 2 * 8 * 4 + 4,
    }
    assert len({json.dumps(row["curve"]) for row in rows}) == 8
    assert not list((made.directory.path / "runs").glob("*/checkpoints/*"))
    assert not list((made.directory.path / "running").glob("*.json"))


def test_runs_of_another_sweep_are_taken_over(made, tmp_path):
    """Kills: a figure that trains again what another one has trained, or takes what is not its own."""
    made.write_rows()
    kept = tmp_path / "kept"
    kept.mkdir()
    for file in (made.directory.about, made.directory.rows):
        shutil.copy(file, kept)
    for source in (made.directory, SweepDirectory(kept)):
        folder = tmp_path / f"by_{source.path.name}"
        folder.mkdir()
        sweep = open_small(folder, MODELS='("attention",)', RATES="(1e-3, 5e-3)")
        assert sweep.reuse(source) == 2
        assert sweep.rows() == [row for row in made.rows() if row["id"] in sweep.directory.done()]
        assert [row["point"]["learning_rate"] for row in sweep.rows()] == [1e-3, 1e-3]
        assert sweep.reuse(source) == 0


def test_what_was_measured_is_not_taken_over(tmp_path):
    """Kills: times of one machine in the figure of another."""
    sweep = open_small(tmp_path)
    scale = dataclasses.replace(sweep.scale, config=lambda point: Measurement(function=dict, arguments={}))
    measured = dataclasses.replace(sweep, scale=scale)
    measured.directory.write_result(measured.specs[0].id, FACTS)
    other = dataclasses.replace(measured, directory=SweepDirectory(tmp_path / "other"))
    other.directory.create(About("small.py", "laptop"))
    assert other.reuse(measured.directory) == 0


class Interrupted(RunQueue):
    """Queue that stops its worker when the first run is at step 3, and records the steps."""

    stop_at = 3

    def __init__(self, directory, name):
        super().__init__(directory, name)
        self.steps = set()

    def tell(self, task, **news):
        super().tell(task, **news)
        if "step" not in news:
            return
        if news["step"] == self.stop_at and self.stop_at not in self.steps:
            os.kill(os.getpid(), signal.SIGTERM)
        self.steps.add(news["step"])


@pytest.mark.full
def test_a_run_that_was_stopped_goes_on_where_it_was(made, tmp_path, capsys):
    """Kills: stopped runs that begin again, end with other numbers than an unbroken run, or count as finished; time
    before the stop that is not counted."""
    sweep = open_small(tmp_path, MODELS='("attention",)')
    with StopSignals() as stop, Interrupted(sweep.directory, "first") as queue:
        work(sweep, queue, workers=1, vectorized=False, stop=stop)
    assert not sweep.directory.done() | sweep.directory.failed()
    assert not list((sweep.directory.path / "running").glob("*.json"))
    costs = [sweep.directory.cost(task.id) for task in sweep.specs]
    assert all(seconds > 0 and cpu_seconds > 0 for seconds, cpu_seconds in costs)
    for task in sweep.specs:
        sweep.directory.write_cost(task.id, 1000.0, 2000.0)
    steps = {path.name for path in sweep.directory.path.glob("runs/*/checkpoints/*")}
    assert steps & {"3", "4"}, steps
    with StopSignals() as stop, Interrupted(sweep.directory, "second") as queue:
        queue.stop_at = None
        work(sweep, queue, workers=1, vectorized=False, stop=stop)
    assert not queue.steps & {1, 2}  # step 3 may be validated late
    alone = {row["id"]: row for row in made.rows()}
    for row in sweep.rows():
        assert row["seconds"] > 1000
        assert row["cpu_seconds"] > 2000
        assert row["curve"] == alone[row["id"]]["curve"]
        assert row["metrics"] == alone[row["id"]]["metrics"]
    report([str(sweep.directory.path)], sweep.directory.read_about().experiment, Screen(sys.stdout))
    assert capsys.readouterr().out == f"{sweep.directory.path}: Small\n"
    assert len((sweep.directory.path / "table.md").read_text().split("\n\n")[3].splitlines()) == 2 + 1
    assert (sweep.directory.path / "figure.png").stat().st_size > 1000


def test_a_run_that_diverges_has_a_result_and_one_that_fails_a_line(tmp_path):
    """Kills: a sweep that ends with the first run that goes wrong; failures that nobody hears of; a validation before
    the divergence that counts as its score."""
    examples = '{"attention": 64, "convolution": 4}'  # fewer than a batch
    sweep = open_small(tmp_path, RATES="(1e37, 1e-3)", SEEDS="(0,)", EXAMPLES=examples, EVAL_EVERY="1")
    make(sweep)
    diverged, finished = sweep.rows()
    assert (diverged["status"], finished["status"]) == ("diverged", "finished")
    assert diverged["curve"]["valid"]
    assert diverged["metrics"] == {}
    assert 0 < diverged["steps"] < finished["steps"] == 6
    assert [failure["point"]["model"] for failure in sweep.failures()] == ["convolution"] * 2
    assert "n_examples=4 must be at least batch_size=8" in sweep.failures()[0]["error"]


def results_of(tasks, *_):
    """Stand-in for training a group: several runs exceed the memory, and one run fails alone."""
    if len(tasks) > 1:
        yield {"id": tasks[0].id, "metrics": {}}
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    if tasks[0].config.train.seed == 1:
        raise ValueError("a bad seed")
    yield {"id": tasks[0].id, "metrics": {}}


def test_a_group_that_fails_is_made_run_by_run(tmp_path, monkeypatch):
    """Kills: one run, or the memory that all need together, that fails every run of its program."""
    monkeypatch.setattr("jaxzoo.sweep.work._trained", results_of)
    sweep = open_small(tmp_path, MODELS='("attention",)', RATES="(1e-3, 1e-2, 1e-1)")
    make(sweep, vectorized=True)
    seeds = {task.id: task.trained.train.seed for task in sweep.specs}
    assert {seeds[task] for task in sweep.directory.done()} == {0}
    assert {sweep.directory.failure(task)["error"] for task in sweep.directory.failed()} == {"ValueError: a bad seed"}
    assert len(sweep.directory.done()) == len(sweep.directory.failed()) == 3


def test_a_worker_takes_its_share_of_one_program(tmp_path, monkeypatch):
    """Kills: a worker that takes all runs while others wait, runs of two programs in one group."""
    sweep, groups = open_small(tmp_path), []

    def made_at_once(tasks, directory, *_):
        groups.append([task.program for task in tasks])
        for task in tasks:
            directory.write_result(task.id, FACTS)

    monkeypatch.setattr("jaxzoo.sweep.work._make", made_at_once)
    with StopSignals() as stop, RunQueue(sweep.directory, "worker") as queue:
        work(sweep, queue, workers=3, vectorized=False, stop=stop)
    assert [len(group) for group in groups] == [3, 1, 2, 1, 1]  # shares of 8, 5, 4, 2 and 1 runs
    assert all(len(set(group)) == 1 for group in groups)


@pytest.mark.full
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_stopped_run_goes_on_without_the_first_of_its_group(vectorized, tmp_path):
    """Kills: a checkpoint whose cursor does not match its step, so that batches are read again."""
    ends = []
    for name, is_stopped in (("whole", False), ("stopped", True)):
        (tmp_path / name).mkdir()
        sweep = open_small(tmp_path / name, MODELS='("attention",)', SEEDS="(0,)")
        first, second = sweep.specs
        if is_stopped:
            with StopSignals() as stop, Interrupted(sweep.directory, "worker") as queue:
                work(sweep, queue, workers=1, vectorized=vectorized, stop=stop)
            sweep.directory.write_result(first.id, {**FACTS, "id": first.id})
        make(sweep, vectorized=vectorized)
        ends.append(sweep.directory.result(second.id))
    assert ends[0]["curve"]["train"] == ends[1]["curve"]["train"]
    assert ends[0]["metrics"] == ends[1]["metrics"]


def test_a_point_without_a_valid_config_is_refused_by_name(tmp_path):
    """Kills: a refusal that leaves the reader to guess which of a hundred points it means."""
    with pytest.raises(ValueError, match=r"small.py: point model attention, learning_rate -1, seed 0: .*positive"):
        open_small(tmp_path, RATES="(-1.0,)")
