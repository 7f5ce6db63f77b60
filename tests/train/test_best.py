"""The best checkpoints. Kills: a best checkpoint that is removed as too old."""

from pathlib import Path

import numpy as np
import pytest

from jaxzoo.train.checkpoint import Checkpoints, folders
from jaxzoo.train.loop import TrainingRun
from jaxzoo.train.metrics import MetricsLog, best_steps

LOSSES = {1: 9.0, 2: 3.0, 4: 1.0, 6: 2.0, 8: 4.0, 9: 5.0}
FLAGS = ("--train.eval-every", "2", "--train.checkpoint-every", "3", "--train.keep-checkpoints", "1")


@pytest.fixture
def losses(monkeypatch):
    """Every validation has the loss of its step in `LOSSES`."""

    write = MetricsLog.write

    def write_given(self, step, metrics):
        known = {"valid/loss": LOSSES.get(step), "valid/accuracy": LOSSES.get(step, 0) / 10}
        return write(self, step, known if "valid/loss" in metrics else metrics)

    monkeypatch.setattr(MetricsLog, "write", write_given)


def kept(directory: Path) -> list[int]:
    return sorted(folders(directory / "checkpoints"))


def test_order():
    """Kills: a metric that is ranked upside down, a diverged validation that is the best, a later equal one before an
    earlier one, training rows or steps without checkpoint that take part."""
    rows = [
        {"step": 1, "train/loss": 0.0},
        {"step": 2, "valid/loss": 2.0, "valid/accuracy": 0.5},
        {"step": 4, "valid/loss": float("nan"), "valid/accuracy": 0.75},
        {"step": 6, "valid/loss": 2.0, "valid/accuracy": 0.25},
        {"step": 8, "valid/loss": float("-inf"), "valid/accuracy": 0.5},
        {"step": 9, "valid/loss": 1.0, "valid/accuracy": 0.0},
    ]
    assert best_steps(rows, "valid/loss") == [9, 2, 6]
    assert best_steps(rows, "valid/accuracy") == [4, 2, 8, 6, 9]
    assert best_steps(rows, "valid/accuracy", among=[9, 6]) == [6, 9]
    assert best_steps(rows, "valid/perplexity") == []


def test_one_of_the_best_outlives_newer_ones(tmp_path):
    """Kills: a best checkpoint that is removed as too old, and others that stay with it."""
    with Checkpoints(tmp_path / "checkpoints", keep=1, best=lambda _: [2]) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, {"x": np.ones(3)}, cursor={}, config={})
    assert kept(tmp_path) == [2, 4]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(("--train.keep-best", "2"), [4, 6, 9], marks=pytest.mark.full),
        pytest.param(("--train.keep-best", "1", "--train.best-metric", "valid/accuracy"), [9], marks=pytest.mark.slow),
        pytest.param((), [9], marks=pytest.mark.slow),
    ],
)
def test_the_best_stay(flags, expected, losses, mqar_file, run, tmp_path):
    """Kills: a best step that is not saved because no checkpoint was due, or is removed as too old; more than asked."""
    assert run(mqar_file, "r", *FLAGS, *flags) == 0
    assert kept(tmp_path / "r") == expected


@pytest.mark.slow
def test_they_stay_whenever_the_run_is_broken_off(losses, mqar_file, run, tmp_path):
    """Kills: a ranking that a resumed run forgets, a best step removed before a better one is complete."""
    flags, advance = (*FLAGS, "--train.keep-best", "2"), TrainingRun.advance
    for end in (5, 7, 8):

        def stop(self, metrics, state=None, end=end):
            advance(self, metrics, state)
            if self.step == end:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingRun, "advance", stop)
            resumed = ("--resume",) if end > 5 else ()
            assert run(mqar_file, "r", *flags, *resumed) == 130
        assert set(kept(tmp_path / "r")) >= ({4} if end == 5 else {4, 6})
    assert run(mqar_file, "r", *flags, "--resume") == 0
    assert kept(tmp_path / "r") == [4, 6, 9]


def test_a_metric_that_no_validation_has_is_refused(mixture_file, run, tmp_path, capfd):
    """Kills: a run that keeps nothing for days, because its metric was misspelt."""
    for metric, hint in (("valid/acuracy", "did you mean 'valid/accuracy'?"), ("x", "there are valid/loss, valid/acc")):
        assert run(mixture_file, "r", "--train.keep-best", "1", "--train.best-metric", metric) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert f"TrainConfig.best_metric={metric!r} must be a metric of these validations; {hint}" in line
    assert not (tmp_path / "r").exists()
