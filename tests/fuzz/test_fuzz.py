"""Damaged files end in the same numbers or in one line; `python -m tests.fuzz` runs more of it."""

import pytest

from tests.fuzz.damage import damages
from tests.fuzz.trial import trials
from tests.fuzz.world import cases, make_world


@pytest.mark.slow
def test_damaged_files(tmp_path, recwarn):
    """Kills: numbers that damage changes in silence, tracebacks, hangs, memory that runs out, files written outside."""
    make_world(tmp_path / "pristine")
    wrong = []
    for case in cases(tmp_path / "pristine"):
        contents = damages((tmp_path / "pristine" / case.file).read_bytes(), case.name, 40)
        for name, verdict, found in trials(tmp_path / "pristine", tmp_path / "world", case, contents):
            if verdict not in ("same", "refused", "accepted"):
                wrong.append(f"{case.name}, {name}: {verdict} {found.status} {found.error[-300:]}")
    assert not wrong, "\n".join(wrong)
