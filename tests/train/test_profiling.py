"""`--profile`. Kills: a range of steps that no run traces."""

import pytest

from jaxzoo.train.profiling import parse_steps


def test_what_is_no_range_of_steps_is_refused():
    """Kills: a traceback of int(), a run that ends without the trace that was asked for."""
    for text in ("3", "3:", ":3", "a:b", "-1:2", "1.5:2", "², :3", "1:2:3"):
        with pytest.raises(ValueError, match="must be START:STOP, such as 10:13"):
            parse_steps(text, 9)
    for text in ("0:2", "3:3", "4:3", "9:11"):
        with pytest.raises(
            ValueError, match=rf"^--profile {text} must name steps from 1 to 9, with START before STOP$"
        ):
            parse_steps(text, 9)
    assert parse_steps("9:10", 9) == range(9, 10)
