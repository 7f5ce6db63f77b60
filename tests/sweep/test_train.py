"""Groups of runs, with stand-ins for training. Kills: a stopped run that begins again."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jaxzoo.parallel.agreement import StopSignals
from jaxzoo.sweep import train
from jaxzoo.train.loop import TrainingRun
from jaxzoo.train.run_dir import RunDirectory
from tests.sweep.small import open_small


@pytest.mark.parametrize(("is_stopped", "expected"), [(False, "last state"), (True, None)])
def test_a_stopped_run_has_no_last_state(is_stopped, expected, monkeypatch):
    """Kills: a run that was stopped, and counts as finished."""
    monkeypatch.setattr(train, "SequentialRuns", lambda *_: SimpleNamespace(state=lambda _: "last state"))
    monkeypatch.setattr(train, "AgreedStop", MagicMock())
    run = MagicMock(training=TrainingRun([], steps=0), seconds=0.0, cpu_seconds=0.0)
    stop = MagicMock(StopSignals, requested=is_stopped)
    ended = train.train_runs([run], MagicMock(), vectorized=False, evaluate=dict, tell=lambda *_: None, stop=stop)
    assert list(ended) == [(run, expected)]


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_with_checkpoints_goes_on(saved, tmp_path, monkeypatch):
    """Kills: a stopped run that begins again."""
    session = MagicMock()
    session.begin.return_value = SimpleNamespace(step=3)
    run = RunDirectory(tmp_path / "run")
    if saved:
        run.create({}, None)
        (run.checkpoints / "3").mkdir(parents=True)
        run.release()
    session.dataset.manifest.return_value = None
    start = train.SweepRun(open_small(tmp_path).specs[0], run, session).start
    assert start.step == 3
    assert bool(session.begin.call_args.args) == saved
