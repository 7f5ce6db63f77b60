"""The loop that makes a sweep with workers, and its progress: live tables on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jaxzoo.sweep.experiment import coordinates
from jaxzoo.sweep.outcome import failed
from jaxzoo.sweep.plan import expected
from jaxzoo.sweep.queue import is_held, progress_of_all
from jaxzoo.sweep.results import SCORE
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.sweep.task import Rates, Task
from jaxzoo.sweep.workers import LocalWorkers, Worker
from jaxzoo.train.progress import duration
from jaxzoo.utils.screen import Failure, Screen

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import ClusterWorkers

LOOK_SECONDS = 1.0
"""Time between two looks at the workers."""
MOST_FAILURES = 3
"""Workers in a row that may fail before they take a run."""
PLAIN_SECONDS = 15.0
"""Time between two lines where there is no terminal."""
MOST_RUNNING = 6
"""Lines for runs in progress."""


class State(NamedTuple):
    """The state of a sweep."""

    done: Mapping[str, Mapping[str, Any]]
    """Results by run."""
    failed: set[str]
    """Runs that have failed."""
    running: Mapping[str, Mapping[str, Any]]
    """Progress reports by run, of runs in progress."""
    left: Mapping[str, Task]
    """Runs that are to be made, with those in progress, by id."""

    def counts(self, task: str) -> bool:
        """Whether a run is done, has failed or is to be made; others are of learning rates that have lost."""
        return task in self.done or task in self.failed or task in self.left


class SweepProgress:
    """Shows the progress of a sweep that so many workers make at once.

    The time left is estimated from runs that were made on `machine` (`jaxzoo.sweep.machine`); None: on any.
    """

    def __init__(self, screen: Screen, workers: int, machine: str | None = None):
        self._console, self._workers = Console(file=screen, highlight=False, markup=False), workers  # type: ignore
        self._machine = machine
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._printed = 0.0
        self._results: dict[str, Mapping[str, Any]] = {}

    def say(self, line: str) -> None:
        """Prints a line that stays."""
        self._console.print(line, soft_wrap=True)

    def show(self, sweep: Sweep, *, last: bool = False) -> None:
        """Shows the state; `last`: the table stays, and failures are listed."""
        due = time.monotonic() - self._printed >= PLAIN_SECONDS
        if not (self._console.is_terminal or last or due):
            return
        directory = sweep.directory
        for task in directory.done() - self._results.keys():
            self._results[task] = directory.result(task)
        reports = progress_of_all(directory).items()
        running = {task: told for task, told in reports if task not in self._results and is_held(directory, task)}
        to_make = {task.id: task for task in expected(sweep)}
        state = State(self._results, directory.failed() - self._results.keys(), running, to_make)
        counted = [task.id for task in sweep.tasks if state.counts(task.id)]
        n_done, n = sum(task in state.done for task in counted), len(counted)
        parts = [f"{n_done} of {n} runs done", f"{len(running)} running", f"{len(state.failed)} failed"]
        left = seconds_left(sweep.tasks, state, self._workers, self._machine)
        if left is not None and n_done + len(state.failed) < n:
            parts.append(f"about {duration(left)} left")
        summary = ", ".join(parts)
        if last:
            self._live.stop()
            self._console.print(table(sweep, state))
            for line in (summary, *(f"failed: {failed(failure)}" for failure in sweep.failures())):
                self.say(line)
        elif self._console.is_terminal:
            self._live.start()
            self._live.update(Group(table(sweep, state), *_running(sweep, state), summary), refresh=True)
        else:
            self.say(summary)
            self._printed = time.monotonic()


def table(sweep: Sweep, state: State) -> Table:
    """Counts and the best accuracy for each value of the first axis."""
    axis = next(iter(sweep.scale.points[0]))
    found = Table(axis, box=None, pad_edge=False)
    for heading in ("done", "running", "failed", "best accuracy"):
        found.add_column(heading, justify="right")
    for value in dict.fromkeys(point[axis] for point, _ in sweep.points):
        tasks = dict.fromkeys(task.id for point, task in sweep.points if point[axis] == value and state.counts(task.id))
        done = [task for task in tasks if task in state.done]
        scores = [state.done[task]["metrics"][SCORE] for task in done if SCORE in state.done[task]["metrics"]]
        best = f"{max(scores):.3f}" if scores else "-"
        counts = [str(sum(task in group for task in tasks)) for group in (state.running, state.failed)]
        found.add_row(str(value), f"{len(done)}/{len(tasks)}", *counts, best)
    return found


def _running(sweep: Sweep, state: State) -> list[Text]:
    """One line per run in progress, the first few."""
    lines = []
    for point, task in sweep.points:
        told = state.running.get(task.id)
        if told and "steps" in told:
            score = f"  accuracy {told['score']:.3f}" if "score" in told else ""
            lines.append(f"  {coordinates(point)}: step {told['step']}/{told['steps']}{score}")
    more = [f"  and {len(lines) - MOST_RUNNING} more"] if len(lines) > MOST_RUNNING else []
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines[:MOST_RUNNING] + more]


def seconds_left(tasks: Sequence[Any], state: State, workers: int, machine: str | None = None) -> float | None:
    """Estimates the time left from the runs that are done, their speed from those of `machine` if it is named; None: no
    such run is."""
    known = {
        task: result["seconds"] / result["steps"]
        for task, result in state.done.items()
        if result.get("steps") and machine in (None, result.get("machine"))
    }
    rates = Rates(tasks, known, state.done)
    left = 0.0
    for task in state.left.values():
        if task.id in state.done or task.id in state.failed:  # since then
            continue
        seconds = rates.seconds(task)
        if seconds is None:
            return None
        told = state.running.get(task.id, {})
        left += seconds * (1 - told["step"] / told["steps"] if "steps" in told else 1)
    return left / workers


def oversee(sweep: Sweep, workers: "LocalWorkers | ClusterWorkers", count: int, board: SweepProgress) -> None:
    """Keeps `count` workers running until every run of the sweep has a result or has failed.

    Raises:
      Failure: workers fail before they make anything; the message is that of the last one.
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
                    raise Failure(f"{failures} workers in a row made nothing; the last one said: {error}")
    except KeyboardInterrupt:
        board.say("interrupted: the workers save their runs and end")
        raise
    finally:
        workers.stop(finished=not _left(sweep))
        sweep.write_rows()
        board.show(sweep, last=True)


def _left(sweep: Sweep) -> int:
    return sum(map(len, sweep.left()))
