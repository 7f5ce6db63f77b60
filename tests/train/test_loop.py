"""What a run does at a step, with stand-ins for the model and the files."""

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jaxzoo.train.loop import NonFiniteError, TrainingRun
from jaxzoo.train.start import Start


def begun(steps: int, **session) -> TrainingRun:
    """A run at step 3 of so many, which validates at the last one."""
    train = SimpleNamespace(steps=steps, eval_every=0, checkpoint_every=0, log_every=1, keep_best=0, best_metric="")
    session = MagicMock(config=SimpleNamespace(train=train), **session)
    course = TrainingRun(session, MagicMock(), Start(MagicMock(), MagicMock(), 3), MagicMock(), MagicMock())
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
