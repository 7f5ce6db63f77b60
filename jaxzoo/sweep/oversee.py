"""The loop that keeps workers running until a sweep is done, shows progress and gathers the results."""

import time
from typing import TYPE_CHECKING

from jaxzoo.sweep.board import Board
from jaxzoo.sweep.queue import progress_of_all
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.sweep.workers import LocalWorkers, Worker

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import ClusterWorkers

LOOK_SECONDS = 1.0
"""Time between two looks at the workers."""
MOST_FAILURES = 3
"""Workers in a row that may fail before they take a run."""


class WorkersError(Exception):
    """Workers fail before they make anything; the message is that of the last one."""


def oversee(sweep: Sweep, workers: "LocalWorkers | ClusterWorkers", count: int, board: Board) -> None:
    """Keeps `count` workers running until every run of the sweep has a result or has failed.

    Args:
      sweep: sweep to make.
      workers: starts and stops workers.
      count: workers at once.
      board: shows progress.

    Raises:
      WorkersError: workers fail before they make anything.
      KeyboardInterrupt: passed on after the workers have saved and ended.
    """
    running: dict[int, Worker] = {}
    failures = 0
    try:
        while left := _left(sweep):
            board.show(sweep)
            free = [number for number in range(min(count, left)) if number not in running]
            if free:
                running |= zip(free, workers.start(free), strict=True)
            time.sleep(LOOK_SECONDS)
            for number in [number for number, worker in running.items() if worker.ended()]:
                worker = running.pop(number)
                error = worker.error_message()
                had_a_run = any(told["worker"] == worker.name for told in progress_of_all(sweep.directory).values())
                failures = failures + 1 if error and not had_a_run else 0
                if error:
                    board.say(f"a worker ended ({error}); another one continues")
                if failures >= MOST_FAILURES:
                    raise WorkersError(f"{failures} workers in a row made nothing; the last one said: {error}")
    except KeyboardInterrupt:
        board.say("interrupted: the workers save their runs and end")
        raise
    finally:
        workers.stop(finished=not _left(sweep))
        sweep.write_rows()
        board.show(sweep, last=True)


def _left(sweep: Sweep) -> int:
    return sum(map(len, sweep.left()))
