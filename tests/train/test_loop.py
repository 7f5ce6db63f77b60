"""What a run does at a step, with stand-ins for the model and the files."""

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jaxzoo.train import loop
from jaxzoo.train.loop import NonFiniteError, TrainingRun
from jaxzoo.train.start import ResumePoint


def begun(steps: int, evaluate=None) -> TrainingRun:
    """A run at step 3 of so many, which validates at the last one."""
    train = SimpleNamespace(steps=steps, eval_every=0, checkpoint_every=0, log_every=1, keep_best=0, best_metric="")
    session = MagicMock(config=SimpleNamespace(train=train))
    course = TrainingRun(
        session, MagicMock(), ResumePoint(MagicMock(), MagicMock(), 3), MagicMock(), MagicMock(), evaluate
    )
    course._stop.requested = False
    course.log, course.checkpoints = MagicMock(), MagicMock()
    course.log.rows, course.log.last.return_value = [], None
    return course


def test_a_validation_that_is_not_finite():
    """Kills training that goes on after a diverged model was validated, and a row of such a validation."""
    course = begun(3, evaluate=lambda _: {"valid/accuracy": 0.5, "valid/loss": math.nan})
    with pytest.raises(NonFiniteError, match="valid/loss is nan") as raised:
        course.begin(MagicMock())
    assert raised.value.step == 3
    course.log.write.assert_not_called()


def test_a_gradient_that_is_not_finite():
    """Kills watching the loss alone, which is finite one step longer than the parameters."""
    course = begun(9)
    course.advance(lambda: {"loss": 1.0, "grad_norm": math.inf}, MagicMock())
    course.log.write.assert_not_called()
    with pytest.raises(NonFiniteError, match="grad_norm is inf at step 4"):
        course.advance(MagicMock(), MagicMock())
    course.log.write.assert_not_called()
    course.checkpoints.save.assert_not_called()


def test_a_save_that_has_failed_is_made_again_at_once(monkeypatch, capsys):
    """Kills a run that has no checkpoint until the next one is due, and one whose second attempt nobody looks at."""
    monkeypatch.setattr("jaxzoo.train.patience.RETRY_SECONDS", (0.0,))
    monkeypatch.setattr(loop, "first_not_finite", lambda _: None)
    monkeypatch.setattr(loop, "to_json", lambda _: {})
    course = begun(9)
    course.checkpoints.newest = 3

    def check():
        if course.checkpoints.newest == 3:
            course.checkpoints.newest = None
            raise OSError("away")

    course.checkpoints.check.side_effect = check
    course.advance(lambda: {"loss": 1.0, "grad_norm": 1.0}, MagicMock())
    assert course.checkpoints.save.call_args.args[0] == 4
    course.checkpoints.wait.assert_called_once()
    assert capsys.readouterr().err == "warning: away; not written, trying again in 0 s\n"
    course.checkpoints.newest = 4
    course.advance(lambda: {"loss": 1.0, "grad_norm": 1.0}, MagicMock())
    course.checkpoints.save.assert_called_once()
