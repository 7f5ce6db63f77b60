"""The training loop and hooks, with stand-ins. Kills: a hook that runs at the wrong step."""

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jaxzoo.train import hooks
from jaxzoo.train.config import TrainConfig
from jaxzoo.train.hooks import RunFiles, RunHooks
from jaxzoo.train.loop import Hook, SingleRun, StepInfo, TrainingRun, run_loop


def log() -> MagicMock:
    found = MagicMock(rows=[])
    found.last.return_value = None
    return found


def run_hooks(rows: MagicMock, checkpoints: object = None, **parts: object) -> RunHooks:
    """The hooks of a run of the config's defaults, whose other parts are mocks."""
    config = SimpleNamespace(train=TrainConfig(log_every=1))
    names = ("start", "stop", "report", "evaluate")
    parts = {name: parts.get(name, MagicMock()) for name in names}
    return RunHooks(RunFiles(None, rows, None, checkpoints), config, **parts)  # type: ignore[arg-type]


def test_hooks_are_called_when_they_are_due():
    """Kills: a period counted from where a run was resumed, a last step that nobody validates, a hook that is called
    after the run has ended, a state that is one update older than the metrics."""
    called = []

    def note(name):
        return lambda info: called.append((name, info.step, info.state and info.state(), info.is_end))

    def update(state, batch):
        return state + batch, {"loss": state}

    noted = [Hook(note("two"), 2), Hook(note("last"), 0), Hook(note("end"), 0, at_end=True)]
    run = TrainingRun(noted, steps=5, step=2)
    ended = [len(each) for each in run_loop(SingleRun(update, 20), iter([1, 2, 3]), [run])]
    assert ended == [0, 0, 0, 1]
    assert called == [
        *(("two", 2, 20, False), ("two", 4, 23, False)),
        *(("two", 5, 26, False), ("last", 5, 26, False), ("end", 5, 26, False), ("end", 5, 26, True)),
    ]


def test_a_hook_ends_its_run_alone():
    """Kills: an early stop that ends the other runs, or that nobody heeds."""

    class Steps:
        at_once = 4
        made: list = []  # noqa: RUF012

        def update(self, batches, active):
            self.made.append((list(batches), list(active)))
            return [dict.fromkeys(active, dict) for _ in batches]

        def state(self, i):
            return i

    runs = [
        TrainingRun([Hook(lambda info: info.step == 2, 2)], steps=4),
        TrainingRun([Hook(lambda info: None, needs_state=False)], steps=7),
    ]
    ended = [[runs.index(run) for run in each] for each in run_loop(Steps(), iter(range(9)), runs)]
    assert Steps.made == [([0, 1], [0, 1]), ([2, 3, 4, 5], [1]), ([6], [1])]
    assert ended == [[], [0], [], [1]]


def test_a_validation_that_is_not_finite():
    """Kills: training that goes on after a diverged model was validated, and a row of such a validation."""
    rows = log()
    stop = SimpleNamespace(requested=False)
    evaluate = lambda _: {"valid/accuracy": 0.5, "valid/loss": math.nan}  # noqa: E731
    validation = run_hooks(rows, evaluate=evaluate, stop=stop).validate
    run = TrainingRun([Hook(validation, 0)], steps=3, step=3)
    run.begin(MagicMock())
    assert not run.goes_on
    assert run.failure is not None
    assert str(run.failure) == "valid/loss is nan at step 3"
    rows.write.assert_not_called()


def test_a_gradient_that_is_not_finite():
    """Kills: watching the loss alone, which is finite one step longer than the parameters."""
    rows, save = log(), MagicMock()
    metrics = run_hooks(rows).record
    run = TrainingRun([Hook(metrics, needs_state=False), Hook(save, 2)], steps=9, step=3)
    run.advance(lambda: {"loss": 1.0, "grad_norm": math.inf}, MagicMock())
    rows.write.assert_not_called()
    save.reset_mock()
    run.advance(MagicMock(), MagicMock())
    assert run.failure is not None
    assert str(run.failure) == "grad_norm is inf at step 4"
    rows.write.assert_not_called()
    run.end(MagicMock())
    save.assert_not_called()


@pytest.mark.parametrize("failures", [1, 2])
def test_a_save_that_has_failed_is_made_again_at_once(failures, monkeypatch, capsys):
    """Kills: a run that has no checkpoint until the next one is due, one whose second attempt nobody looks at, and one
    that tries forever."""
    monkeypatch.setattr(hooks, "first_not_finite", lambda _: None)
    monkeypatch.setattr(hooks, "to_json", lambda _: {})
    checkpoints = MagicMock(newest=3)
    saving = run_hooks(log(), checkpoints)

    def check():
        checkpoints.newest = None
        raise OSError("away")

    checkpoints.check.side_effect = check
    if failures == 2:
        checkpoints.wait.side_effect = OSError("still away")
        with pytest.raises(OSError, match="still away"):
            saving.save_again(StepInfo(4, dict, MagicMock()))
    else:
        saving.save_again(StepInfo(4, dict, MagicMock()))
    assert checkpoints.save.call_args.args[0] == 4
    checkpoints.wait.assert_called_once()
    assert capsys.readouterr().err == "warning: away; not written, trying once more\n"
