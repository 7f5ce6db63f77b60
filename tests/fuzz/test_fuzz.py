"""Damaged files end in the same numbers or in one line."""

import pytest

from tests.fuzz.__main__ import main


@pytest.mark.slow
def test_damaged_files(recwarn):
    """Kills: numbers that damage changes in silence, tracebacks, hangs, memory that runs out, files written outside."""
    assert main(["--trials", "40"]) == 0
