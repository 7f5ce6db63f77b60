"""Progress lines on standard error. Kills: a long command without output."""

import io
import re
import sys
import threading

import pytest

from jaxzoo.utils import progress


class Stream(io.StringIO):
    """Stand-in for standard error, a terminal or not."""

    def __init__(self, is_terminal: bool):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def test_lines_tell_count_rate_and_time_left(monkeypatch):
    """Kills: a line at every report, none at the end, a total that is lost."""
    stream = Stream(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e9)
    with progress.show_progress("shards") as report:
        for done in range(50, 61):
            report("merge", done, 60)
    (line,) = stream.getvalue().splitlines()
    assert re.fullmatch(r"merge: 60 of 60 shards [\d.,e+]+/s 0s left", line)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_work_is_asked_until_the_block_ends(is_terminal, monkeypatch):
    """Kills: a long command without progress; a line that is wider than the terminal, or stays on it."""
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    asked = threading.Event()
    n_asked = 0

    def poll():
        nonlocal n_asked
        n_asked += 1
        if n_asked == 3:
            asked.set()
        return f"{'document ' * 4}{n_asked}", 1, None

    with progress.show_progress("files", poll):
        assert asked.wait(10)
    text = stream.getvalue()
    if is_terminal:
        assert "document" in text
        assert "document " * 4 + "3: 1 files" not in text
        assert text.endswith("\x1b[2K")
    else:
        assert "document " * 4 + "3: 1 files" in text
