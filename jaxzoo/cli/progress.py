"""Progress of long work, on standard error."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jaxzoo.utils.screen import Screen

REPORT_SECONDS = {True: 1.0, False: 10.0}
"""Time between two updates of `show_progress`: on a terminal, which shows one line, and elsewhere."""
LINE_SECONDS = 2.0
"""Shortest time between two lines of `ProgressLines`."""


class ProgressLines:
    """Prints progress, rate and time left, in units: at most every two seconds, and at the end."""

    def __init__(self, unit: str):
        self._unit = unit
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()

    def __call__(self, name: str, done: int, total: int | None = None) -> None:
        """Reports that `done` of `total` (None: unknown) are done; `name` is the work, or its last piece."""
        now = time.monotonic()
        if self._began is None:
            self._began = (now, done)
        if done != total and now - self._said < LINE_SECONDS:
            return
        self._said = now
        seconds, new = now - self._began[0], done - self._began[1]
        parts = [f"{name}: {done:,} {self._unit}" if total is None else f"{name}: {done:,} of {total:,} {self._unit}"]
        if new and seconds:
            parts.append(f"{new / seconds:,.3g}/s")
            if total is not None:
                parts.append(f"{(total - done) * seconds / new:,.0f} s left")
        Screen(sys.stderr).say(", ".join(parts))


@contextlib.contextmanager
def show_progress(line: Callable[[float], str]) -> Iterator[None]:
    """Shows a line until the block ends; a thread asks for its text, given the seconds that have passed."""
    screen, ended, start = Screen(sys.stderr), threading.Event(), time.monotonic()

    def watch() -> None:
        width = 0
        while not ended.wait(REPORT_SECONDS[screen.is_terminal]):
            text = line(time.monotonic() - start)
            screen.write(f"\r{text:{width}}" if screen.is_terminal else text + "\n")
            width = len(text)
        if screen.is_terminal and width:
            screen.write("\r" + " " * width + "\r")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
