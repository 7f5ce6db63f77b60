"""Progress of a sweep. Kills: runs that are counted twice, an estimate that never ends."""

import dataclasses
import io
import json

import pytest

from jaxzoo.sweep import oversee
from jaxzoo.sweep.oversee import SweepProgress
from jaxzoo.sweep.queue import RunQueue
from jaxzoo.utils import progress
from jaxzoo.utils.screen import Screen
from tests.sweep.small import FACTS, open_small

RESULT = {**FACTS, "steps": 6, "seconds": 12.0}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """Sets the environment of a common terminal, and redraws at every call."""
    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.0)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)


class Terminal(io.StringIO):
    """Terminal that records its output."""

    def isatty(self) -> bool:
        return True


def half_done(tmp_path):
    """Eight runs: two done, one of them diverged, one failed."""
    sweep = open_small(tmp_path)
    tasks = [task.id for task in sweep.specs]
    sweep.directory.write_result(tasks[0], {**RESULT, "metrics": {"valid/accuracy": 0.25}})
    sweep.directory.write_result(tasks[4], {**RESULT, "metrics": {}})
    sweep.directory.write_failure(tasks[7], {"error": "ValueError: no"})
    return sweep, tasks


def test_the_line_counts_and_failures_are_listed(tmp_path):
    """Kills: runs that are counted twice, failures that nobody hears of."""
    sweep, _ = half_done(tmp_path)
    stream = io.StringIO()
    SweepProgress(Screen(stream), 2).show(sweep, last=True)
    first, *others = stream.getvalue().splitlines()
    assert first.startswith("2 of 8 runs done, 0 running, 1 failed, about ")
    assert others == ["failed: model convolution, learning_rate 0.01, seed 1: ValueError: no"]


def test_rate_loss_and_time_left(tmp_path, monkeypatch):
    """Kills: an estimate that ignores the number of workers or partial runs; a finished run that counts as running; a
    rate that counts steps of earlier commands."""
    now = [100.0]
    monkeypatch.setattr(oversee.time, "monotonic", lambda: now[0])
    sweep, tasks = half_done(tmp_path)
    stream = Terminal()
    board = SweepProgress(Screen(stream), 3)
    with RunQueue(sweep.directory, "worker") as queue:
        for task in tasks[5:7]:
            queue.take(task)
        board.show(sweep)
        assert "steps/s" not in stream.getvalue()
        for task in (*tasks[1:4], tasks[5]):
            sweep.directory.write_result(task, {**RESULT, "metrics": {}})
        told = {"attempt": 1, "worker": "worker", "step": 3, "steps": 6, "loss": 1.25}
        sweep.directory.running(tasks[6], "json").write_text(json.dumps(told))
        for left in (tasks[0], tasks[7]):  # of killed workers
            sweep.directory.running(left, "json").write_text(json.dumps(told))
        now[0] += 3.0
        board.show(sweep)
    # four runs of 6 steps, and 3 steps; half of 12 s, three workers
    assert "6 of 8 runs done, 1 running, 1 failed, about 2s left, loss 1.250, 9 steps/s" in stream.getvalue()


def test_seeds_of_rates_that_have_lost_do_not_count(tmp_path):
    """Kills: a finished search that looks unfinished, and time for runs that are never made."""
    opened = open_small(tmp_path, RATES="(1e-3, 1e-2, 1e-1)", SEEDS="(0, 1, 2)")
    sweep = dataclasses.replace(opened, scale=dataclasses.replace(opened.scale, all_seeds=1))

    def shown():
        stream = io.StringIO()
        SweepProgress(Screen(stream), 1).show(sweep, last=True)
        return stream.getvalue()

    for point, task in sweep.points:
        if point["seed"] == 0:
            sweep.directory.write_result(task.id, {**RESULT, "metrics": {"valid/accuracy": point["learning_rate"]}})
    assert shown() == "6 of 10 runs done, 0 running, 0 failed, about 48s left\n"
    for task in sweep.left()[0]:
        sweep.directory.write_result(task.id, {**RESULT, "metrics": {"valid/accuracy": 0.5}})
    assert sweep.left() == ([], [])
    assert shown() == "10 of 10 runs done, 0 running, 0 failed\n"


def test_a_pipe_that_closes_does_not_end_the_sweep(tmp_path):
    """Kills: a sweep that ends with `| head`."""

    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    sweep, _ = half_done(tmp_path)
    board = SweepProgress(Screen(Closed()), 2)
    board.show(sweep)
    board.show(sweep, last=True)
