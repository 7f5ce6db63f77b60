"""The table of a sweep under way: what is done, what runs, what has failed, how good, how long still."""

import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxzoo.claims import news
from jaxzoo.screen import Screen
from jaxzoo.sweep.cost import Rates
from jaxzoo.sweep.experiment import in_words
from jaxzoo.sweep.results import SCORE
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.train.progress import duration

PLAIN_SECONDS = 15.0
"""Between two lines where there is no terminal to draw on."""
MOST_RUNNING = 6
"""Lines for runs under way."""


class State(NamedTuple):
    """Where a sweep is."""

    done: Mapping[str, Mapping[str, Any]]
    """Results by run."""
    failed: set[str]
    """Runs that have failed."""
    running: Mapping[str, Mapping[str, Any]]
    """What workers tell of runs under way."""


class Board:
    """Draws the table over and over on a terminal; elsewhere a line now and then.

    Args:
      screen: where to.
      workers: how many work at once, for the time that is left.
    """

    def __init__(self, screen: Screen, workers: int):
        self._screen, self._workers = screen, workers
        self._drawn, self._printed = 0, 0.0
        self._results: dict[str, Mapping[str, Any]] = {}

    def say(self, line: str) -> None:
        """A line that stays."""
        self._clear()
        self._screen.say(line)

    def show(self, sweep: Sweep, *, last: bool = False) -> None:
        """Draws the table as it is now; `last`: it stays, and failures are listed."""
        due = time.monotonic() - self._printed >= PLAIN_SECONDS
        if not (self._screen.is_terminal or last or due):
            return
        state = self._look(sweep)
        summary = _summary(sweep, state, self._workers)
        if self._screen.is_terminal or last:
            self._clear()
            lines = [*table(sweep, state), *([] if last else _running(sweep, state)), summary]
            width = shutil.get_terminal_size().columns - 1
            self._screen.write("".join(line[:width] + "\n" for line in lines))
            self._drawn = 0 if last else len(lines)
        else:
            self._screen.say(summary)
            self._printed = time.monotonic()
        for failure in sweep.failures() if last else ():
            self._screen.say(f"failed: {in_words(failure['point'])}: {failure['error']}")

    def _look(self, sweep: Sweep) -> State:
        for task in sweep.directory.done() - self._results.keys():
            self._results[task] = sweep.directory.result(task)
        failed = sweep.directory.failed() - self._results.keys()
        running = {task: told for task, told in news(sweep.directory).items() if task not in self._results}
        return State(self._results, failed, running)

    def _clear(self) -> None:
        """Moves to where the table began and empties the screen from there on."""
        if self._drawn:
            self._screen.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0


def table(sweep: Sweep, state: State) -> list[str]:
    """A line for each value of the first axis."""
    axis = next(iter(sweep.scale.points[0]))
    values = list(dict.fromkeys(point[axis] for point, _ in sweep.points))
    width = max(len(axis), *(len(str(value)) for value in values))
    lines = [f"{axis:{width}}    done  running  failed    best"]
    for value in values:
        tasks = list(dict.fromkeys(task.id for point, task in sweep.points if point[axis] == value))
        done = [task for task in tasks if task in state.done]
        scores = [state.done[task]["metrics"][SCORE] for task in done if SCORE in state.done[task]["metrics"]]
        best = f"{max(scores):.3f}" if scores else "-"
        counts = [sum(task in group for task in tasks) for group in (state.running, state.failed)]
        lines.append(f"{value!s:{width}}  {len(done):3}/{len(tasks):<3} {counts[0]:7} {counts[1]:7} {best:>7}")
    return lines


def _running(sweep: Sweep, state: State) -> list[str]:
    """A line for each run under way, the first few."""
    lines = []
    for point, task in sweep.points:
        told = state.running.get(task.id)
        if told and "steps" in told:
            score = f"  accuracy {told['score']:.3f}" if "score" in told else ""
            lines.append(f"  {in_words(point)}: step {told['step']}/{told['steps']}{score}")
    more = [f"  and {len(lines) - MOST_RUNNING} more"] if len(lines) > MOST_RUNNING else []
    return lines[:MOST_RUNNING] + more


def _summary(sweep: Sweep, state: State, workers: int) -> str:
    n_done, n = len(state.done.keys() & {task.id for task in sweep.tasks}), len(sweep.tasks)
    parts = [f"{n_done} of {n} runs done", f"{len(state.running)} running", f"{len(state.failed)} failed"]
    left = seconds_left(sweep.tasks, state, workers)
    if left is not None and n_done + len(state.failed) < n:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def seconds_left(tasks: Sequence[Any], state: State, workers: int) -> float | None:
    """An estimate by the runs that are done; None: none is."""
    known = {task: result["seconds"] / result["steps"] for task, result in state.done.items() if result.get("steps")}
    rates = Rates(tasks, known)
    left = 0.0
    for task in tasks:
        if task.id in state.done or task.id in state.failed:
            continue
        seconds = rates.seconds(task)
        if seconds is None:
            return None
        told = state.running.get(task.id, {})
        left += seconds * (1 - told["step"] / told["steps"] if "steps" in told else 1)
    return left / workers
