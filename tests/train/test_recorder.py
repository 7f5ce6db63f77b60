"""What a run records, with stand-ins for the model and the files."""

import math
from unittest.mock import MagicMock

import pytest

from jaxzoo.train.recorder import NonFiniteError, Recorder


def test_a_validation_that_is_not_finite():
    """Kills training that goes on after a diverged model was validated, and a row of such a validation."""
    session, log = MagicMock(), MagicMock()
    session.evaluate.return_value = {"valid/accuracy": 0.5, "valid/loss": math.nan}
    recorder = Recorder(session, MagicMock(), log, MagicMock())
    with pytest.raises(NonFiniteError, match="valid/loss is nan") as raised:
        recorder.validate(3, MagicMock())
    assert raised.value.step == 3
    log.write.assert_not_called()
