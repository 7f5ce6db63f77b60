"""Sees to it that a sweep is made: keeps workers at work, tells how far they are, and gathers the results."""

import time
from collections.abc import Callable

from jaxzoo.claims import bury, newest_claims
from jaxzoo.sweep.board import Board
from jaxzoo.sweep.launch import Worker, stop_all
from jaxzoo.sweep.sweep import Sweep

LOOK_SECONDS = 1.0
"""Between two looks."""
MOST_IN_VAIN = 3
"""Workers in a row that may fail before they take a run."""


class WorkersError(Exception):
    """Workers fail before they make anything; the message is the last one's."""


def oversee(sweep: Sweep, start: Callable[[int], Worker], n_workers: int, board: Board) -> None:
    """Keeps `n_workers` at work until every run of the sweep has a result or has failed.

    Args:
      sweep: what is made.
      start: starts worker number i.
      n_workers: how many work at once.
      board: tells how far they are.

    Raises:
      WorkersError: they fail before they make anything.
      KeyboardInterrupt: as it came; the workers have saved and ended by then.
    """
    workers: dict[int, Worker] = {}
    in_vain = 0
    try:
        while left := _left(sweep):
            board.show(sweep)
            for number in range(min(n_workers, left)):
                if number not in workers:
                    workers[number] = start(number)
            time.sleep(LOOK_SECONDS)
            for number, worker in list(workers.items()):
                if not worker.ended():
                    continue
                del workers[number]
                at_work = any(claim.worker == worker.name for claim in newest_claims(sweep.directory).values())
                bury(sweep.directory, [worker.name])
                words = worker.last_words()
                in_vain = in_vain + 1 if words and not at_work else 0
                if words:
                    board.say(f"a worker ended ({words}); another one goes on")
                if in_vain >= MOST_IN_VAIN:
                    raise WorkersError(f"{in_vain} workers in a row made nothing; the last one said: {words}")
    except KeyboardInterrupt:
        board.say("interrupted: the workers save their runs and end")
        raise
    finally:
        stop_all(list(workers.values()))
        bury(sweep.directory, [worker.name for worker in workers.values()])
        sweep.write_rows()
        board.show(sweep, last=True)


def _left(sweep: Sweep) -> int:
    settled = sweep.directory.done() | sweep.directory.failed()
    return sum(task.id not in settled for task in sweep.tasks)
