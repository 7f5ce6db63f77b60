"""Progress of long work, on standard error: one line fitted to the terminal, or a line from time to time elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Protocol

from jaxzoo.utils.screen import Screen

LINE_SECONDS = 10.0
"""Shortest time between two lines where standard error is no terminal."""
PLAIN_WIDTH = 200
POLL_SECONDS = 1.0
"""Time between two questions to the work how far it is."""


class Report(Protocol):
    """Reports that `done` of `total` (None: unknown) are done; `name` is the work, or its last piece."""

    def __call__(self, name: str, done: int, total: int | None = None, /) -> None: ...


@contextlib.contextmanager
def show_progress(unit: str, poll: Callable[[], tuple[str, int, int | None]] | None = None) -> Iterator[Report]:
    """Shows progress, rate and time left until the block ends.

    Args:
      unit: what is counted.
      poll: gives the arguments of a report; asked every second by a thread.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Any) -> Text:
            rate = f"{task.speed:,.3g}/s" if task.speed else ""
            left = task.time_remaining
            return Text(rate if left is None else f"{rate} {timedelta(seconds=left)} left")

    screen: Any = Screen(sys.stderr)
    console = Console(file=screen, width=None if screen.is_terminal else PLAIN_WIDTH)
    count = TextColumn("{task.description}: {task.fields[count]}")
    bar = [BarColumn(bar_width=20)] if screen.is_terminal else []
    line = Progress(count, *bar, RateColumn(), console=console, transient=True, redirect_stdout=False)
    printed = time.monotonic()

    def report(name: str, done: int, total: int | None = None, /) -> None:
        nonlocal printed
        count = f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"
        if not line.tasks:
            line.add_task(name, completed=done, total=total, count=count)
        elif done < line.tasks[0].completed:  # another piece of work
            line.reset(line.task_ids[0])
        line.update(line.task_ids[0], description=name, completed=done, total=total, count=count)
        now = time.monotonic()
        if not screen.is_terminal and (done == total or now - printed >= LINE_SECONDS):
            console.print(line.make_tasks_table(line.tasks))
            printed = now

    ended = threading.Event()

    def watch() -> None:
        while poll and not ended.wait(POLL_SECONDS):
            report(*poll())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with line if screen.is_terminal else contextlib.nullcontext():
        try:
            yield report
        finally:
            ended.set()
            watcher.join()
