"""Progress of long work as one line: redrawn on a terminal, printed from time to time elsewhere."""

import contextlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxzoo.utils.screen import Screen
from jaxzoo.utils.text_table import duration

LINE_SECONDS = 10.0
"""Shortest time between two lines where the screen is not a terminal."""
LIVE_SECONDS = 0.1
"""Shortest time between two drawings on a terminal."""
POLL_SECONDS = 1.0
"""Time between two calls of `poll`."""
PLAIN_WIDTH = 200
BLOCKS = "▁▂▃▄▅▆▇█"

Report = Callable[..., None]
"""`report(name, done, total=None)`: `done` of `total` (None: unknown) are done; `name` is the work, or its part."""


class ProgressLine:
    """A bar and a text; `seconds` is the shortest time between two lines where the screen is not a terminal."""

    def __init__(self, screen: Screen, seconds: float):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.is_live: bool = screen.is_terminal
        self._seconds = LIVE_SECONDS if self.is_live else seconds
        width = None if self.is_live else PLAIN_WIDTH
        options: dict[str, Any] = {"file": screen, "highlight": False, "markup": False, "emoji": False}
        options["force_jupyter"] = False  # a notebook shows what the screen gets; rich would pass the screen by
        self._console = Console(**options, width=width, force_terminal=self.is_live)
        bar = 20 if self._console.width >= 100 else 10
        self.room: int = self._console.width - bar - 1
        """Characters next to the bar."""
        columns = (BarColumn(bar), TextColumn("{task.description}", markup=False))
        plain = dict.fromkeys(("auto_refresh", "redirect_stdout", "redirect_stderr"), False)
        self._line = Progress(*columns, console=self._console, transient=True, **plain)
        self._bar = self._line.add_task("")
        self.shown: float = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether the next `show` draws."""
        return time.monotonic() - self.shown >= self._seconds

    def say(self, line: str) -> None:
        """Prints a line that stays."""
        self._console.print(line, soft_wrap=True)

    def show(self, parts: Sequence[str], done: int, total: int | None = None, *, gap: str = "  ") -> None:
        """Draws the line: the parts that fit into the terminal, the most important first."""
        self.shown = time.monotonic()
        if not self.is_live:
            self.say(gap.join(parts))
            return
        n = len(parts)
        while n > 1 and len(gap.join(parts[:n])) > self.room:
            n -= 1
        text = gap.join(parts[:n])
        self._line.start()
        self._line.update(self._bar, completed=done, total=total, description=text, refresh=True)

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self.is_live:  # elsewhere rich would print an empty line
            self._line.stop()


def sparkline(values: Sequence[float], width: int = 12) -> str:
    """Draws values as block characters between the smallest and the largest: means of equal parts of the sequence."""
    n = min(width, len(values))
    ends = [i * len(values) // n for i in range(n + 1)] if n else []
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(BLOCKS[round((mean - low) / (span or 1.0) * (len(BLOCKS) - 1))] for mean in means)


@contextlib.contextmanager
def show_progress(unit: str, poll: Callable[[], tuple[str, int, int | None]] | None = None) -> Iterator[Report]:
    """Context manager: shows progress, rate and time left on standard error.

    Args:
      unit: what is counted.
      poll: returns the arguments of a report; a thread calls it every second.
    """
    line = ProgressLine(Screen(sys.stderr), LINE_SECONDS)
    began = time.monotonic()
    if not line.is_live:
        line.shown = began
    first = 0
    last = 0

    def report(name: str, done: int, total: int | None = None, /) -> None:
        nonlocal began, first, last
        if done < last:  # another piece of work
            began = time.monotonic()
            first = done
        last = done
        if not line.is_due and done != total:
            return
        count = f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"
        rate = (done - first) / max(time.monotonic() - began, 1e-9)
        left = [f"{duration((total - done) / rate)} left"] if rate and total is not None else []
        numbers = " ".join([count, *([f"{rate:,.3g}/s"] if rate else []), *left])
        if line.is_live and len(name) + len(numbers) + 2 > line.room:
            name = f"{name[: max(8, line.room - len(numbers) - 3)]}…"
        line.show([f"{name}: {numbers}"], done, total)

    ended = threading.Event()

    def watch() -> None:
        while poll and not ended.wait(POLL_SECONDS):
            report(*poll())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield report
    finally:
        ended.set()
        watcher.join()
        line.close()
