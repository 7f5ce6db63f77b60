"""A line on standard error that says how far long work is."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jaxzoo.screen import Screen

REPORT_SECONDS = {True: 1.0, False: 10.0}
"""Between two looks: on a terminal, where the line is drawn over, and elsewhere, where lines follow one another."""


@contextlib.contextmanager
def show_progress(line: Callable[[float], str]) -> Iterator[None]:
    """Shows progress as long as the block lasts.

    Args:
      line: what to show, of the seconds since the beginning; called by a thread.
    """
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
