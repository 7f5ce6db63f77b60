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


@pytest.mark.parametrize(("columns", "shown"), [(60, "one  two"), (40, "one"), (120, "one  two  three")])
def test_parts_that_do_not_fit_are_left_out(columns, shown, monkeypatch):
    """Kills: a time left that is cut in the middle."""
    stream = Stream(is_terminal=True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    line = progress.ProgressLine(progress.Screen(stream), 0.0)
    line.show([word.ljust(22, ".") for word in ("one", "two", "three")], 1, 2)
    line.close()
    drawn = re.sub(r"\x1b\[[0-9;?]*\w", "", stream.getvalue())
    assert list(dict.fromkeys(re.findall("one|two|three", drawn))) == shown.split()
    assert "…" not in drawn


def test_sparkline_draws_means_of_parts():
    """Kills: the last values left out, a constant or empty sequence that divides by zero."""
    assert progress.sparkline([8, 8, 4, 4, 1, 1], width=3) == "█▄▁"
    assert progress.sparkline(range(1000)) == "▁▂▂▃▄▄▅▅▆▇▇█"
    assert progress.sparkline([2.0, 2.0]) == "▁▁"
    assert progress.sparkline([]) == ""


def test_a_notebook_gets_what_the_screen_gets(monkeypatch):
    """Kills: `jaxzoo.fit` in a notebook, whose silent screen rich passes by, with a line of output per report."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    stream = Stream(is_terminal=False)
    line = progress.ProgressLine(progress.Screen(stream), 0.0)
    line.show(["one", "two"], 1, 2)
    assert stream.getvalue() == "one  two\n"
