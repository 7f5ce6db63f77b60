"""Metrics that go to an experiment tracker."""

import sys
import types

import pytest

from jaxzoo.train.metrics import MetricsLog, read_rows
from jaxzoo.train.trackers import open_tracker


def test_a_tracker_gets_what_tensorboard_gets(tmp_path, monkeypatch):
    """Kills: rows that do not arrive, a step that is lost, a tracker that is not closed after a failure."""
    calls = []
    package = types.ModuleType("wandb")
    package.init = lambda **options: calls.append(("init", options["name"]))
    package.log = lambda metrics, step: calls.append(("log", step, metrics))
    package.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, "wandb", package)

    def fail():
        with (
            MetricsLog(tmp_path / "metrics.jsonl") as log,
            open_tracker("wandb", tmp_path / "run-7", {}) as log.track,
        ):
            log.write(3, {"train/loss": 0.5})
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert calls == [("init", "run-7"), ("log", 3, {"train/loss": 0.5}), ("finish",)]
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 3, "train/loss": 0.5}]


def test_an_absent_tracker_is_one_line(tmp_path, monkeypatch):
    """Kills: a traceback for a package that is not installed."""
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match="--tracker trackio needs the package trackio: pip install trackio"):
        open_tracker("trackio", tmp_path, {}).__enter__()
