"""Estimates of a sweep's time. Kills: validations or compilation that cost nothing."""

import re

import pytest

from jaxzoo.sweep import cost
from jaxzoo.sweep.cost import MeasuredProgram, plan
from tests.sweep.small import FACTS, open_small


def minutes(lines: list[str], beginning: str) -> float:
    """The first duration of a line, in minutes."""
    (line,) = [line for line in lines if line.startswith(beginning)]
    found = re.search(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?= by)", line)
    assert found
    hours, mins, seconds = (int(part or 0) for part in found.groups())
    return 60 * hours + mins + seconds / 60


def test_time_is_steps_and_compilation_shared_out(tmp_path):
    """Kills: seconds of a step taken for those of a run, or a run that is done counted once more."""
    sweep = open_small(tmp_path, STEPS="60000", MODELS='("attention",)')
    first = sweep.specs[0]
    measured = [MeasuredProgram(first, compile_seconds=60.0, step_seconds=0.01)]
    lines = plan(sweep, measured, workers=2, vectorized=False)
    assert "runs: 4, of which 4 are missing" in lines[0]
    assert lines[1].startswith("programs to compile: 1,")
    assert minutes(lines, "time: ") == (4 * 10 + 1) / 2
    sweep.directory.write_result(first.id, FACTS)
    assert minutes(plan(sweep, measured, workers=2, vectorized=False), "time: ") == (3 * 10 + 1) / 2


def test_a_step_has_its_share_of_the_validations(tmp_path, monkeypatch):
    """Kills: validations, or their compilation, that cost nothing; steps that are too few for a median."""
    seconds, asked = iter([(10.0, 1.0), (5.0, 2.0)]), []
    monkeypatch.setattr(cost, "_first_and_median", lambda run, *least: asked.append(least) or next(seconds))
    task = open_small(tmp_path).specs[0]
    (found,) = cost.measure([task])
    every = task.trained.train.eval_every
    assert found == MeasuredProgram(task, compile_seconds=9.0 + 3.0, step_seconds=1.0 + 2.0 / every)
    assert asked == [(cost.STEPS, cost.STEP_SECONDS), (1,)]


def test_what_is_measured_of_a_step(monkeypatch):
    """Kills: the compilation among the steps, the fastest step, whose batch is ready, too few steps."""
    taken, clock = [9.0, 0.1, 0.3, 0.2, 0.3, 0.9, 5.0], [0.0]

    def run():
        clock[0] += taken.pop(0)

    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])
    assert cost._first_and_median(run, 3) == pytest.approx((9.0, 0.2))
    taken.insert(0, 9.0)
    assert cost._first_and_median(run, 1, 1.0) == pytest.approx((9.0, 0.6))
    assert taken == [5.0]
