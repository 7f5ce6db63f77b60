"""Loop that runs a sweep with workers, and its progress line."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxzoo.sweep.cost import expected
from jaxzoo.sweep.run_spec import Rates, RunSpec
from jaxzoo.sweep.sweep import Sweep
from jaxzoo.sweep.table import failed
from jaxzoo.sweep.workers import LocalWorkers, Worker
from jaxzoo.utils.progress import ProgressLine
from jaxzoo.utils.screen import Failure, Screen
from jaxzoo.utils.text_table import duration

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import ClusterWorkers

LOOK_SECONDS = 1.0
"""Time between two looks at the workers."""
MOST_FAILURES = 3
"""Workers in a row that may fail before they take a run."""
PLAIN_SECONDS = 15.0
"""Time between two lines where there is no terminal."""


class SweepProgress:
    """Shows the progress of a sweep with this number of workers.

    The time left is estimated from runs on `machine` (`jaxzoo.sweep.machine`; None: on any).
    """

    def __init__(self, screen: Screen, workers: int, machine: str | None = None):
        self._line = ProgressLine(screen, PLAIN_SECONDS)
        self._workers = workers
        self._machine = machine
        self._results: dict[str, Mapping[str, Any]] = {}
        self._first: tuple[float, int] | None = None
        self.say = self._line.say

    def show(self, sweep: Sweep, *, last: bool = False) -> None:
        """Prints the state; with `last`, as a permanent line that is followed by the failures."""
        if not (self._line.is_due or last):
            return
        n_done, n, parts = self._describe(sweep)
        if not last:
            self._line.show(parts, n_done, n, gap=", ")
            return
        self._line.close()
        for line in (", ".join(parts), *(f"failed: {failed(failure)}" for failure in sweep.failures())):
            self.say(line)

    def _describe(self, sweep: Sweep) -> tuple[int, int, list[str]]:
        """Number of finished runs, number of all runs, and the parts of the line, the most important first."""
        directory = sweep.directory
        queue = sweep.directory.queue()
        for run in directory.done() - self._results.keys():
            self._results[run] = directory.result(run)
        lost = directory.failed() - self._results.keys()
        reports = queue.progress().items()
        running = {run: told for run, told in reports if run not in self._results and queue.is_held(run)}
        left = {spec.id: spec for spec in expected(sweep)}
        # The other runs have learning rates that the search has dropped.
        counted = [spec.id for spec in sweep.specs if spec.id in self._results.keys() | lost | left.keys()]
        n_done = sum(run in self._results for run in counted)
        parts = [f"{n_done} of {len(counted)} runs done", f"{len(running)} running", f"{len(lost)} failed"]
        to_make = [spec for run, spec in left.items() if run not in self._results and run not in lost]
        seconds = seconds_left(sweep.specs, to_make, self._results, running, self._machine)
        if seconds is not None and n_done + len(lost) < len(counted):
            parts.append(f"about {duration(seconds / self._workers)} left")
        return n_done, len(counted), parts + self._rate(running)

    def _rate(self, running: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Mean loss of the runs in progress, and steps/s since the first call."""
        now = time.monotonic()
        steps = sum(told.get("step", 0) for told in running.values())
        steps += sum(result.get("steps", 0) for result in self._results.values())
        self._first = self._first or (now, steps)
        seconds = now - self._first[0]
        new = steps - self._first[1]
        losses = [told["loss"] for told in running.values() if "loss" in told]
        parts = [f"loss {sum(losses) / len(losses):.3f}"] if losses else []
        return [*parts, f"{new / seconds:,.0f} steps/s"] if new > 0 and seconds > 0 else parts


def seconds_left(
    specs: Sequence[RunSpec],
    to_make: Sequence[RunSpec],
    done: Mapping[str, Mapping[str, Any]],
    running: Mapping[str, Mapping[str, Any]],
    machine: str | None = None,
) -> float | None:
    """Estimates the time that one worker needs for the runs `to_make`. Returns None if unknown.

    Args:
      specs: all runs of the sweep.
      done: results by id of the run.
      running: progress reports by id of the run.
      machine: only runs on this machine determine the speed; None: all.
    """
    known = {
        run: result["seconds"] / result["steps"]
        for run, result in done.items()
        if result.get("steps") and machine in (None, result.get("machine"))
    }
    rates = Rates(specs, known, done)
    total = 0.0
    for spec in to_make:
        seconds = rates.seconds(spec)
        if seconds is None:
            return None
        told = running.get(spec.id, {})
        total += seconds * (1 - told.get("step", 0) / told["steps"] if "steps" in told else 1)
    return total


def oversee(sweep: Sweep, workers: "LocalWorkers | ClusterWorkers", count: int, progress: SweepProgress) -> None:
    """Keeps `count` workers running until every run of the sweep has a result or has failed.

    Raises:
      Failure: workers fail before they train anything; with the message of the last one.
      KeyboardInterrupt: after the workers have saved and ended.
    """
    running: dict[int, Worker] = {}
    failures = 0
    try:
        while left := _left(sweep):
            progress.show(sweep)
            free = [number for number in range(min(count, left)) if number not in running]
            if free:
                running |= zip(free, workers.start(free), strict=True)
            time.sleep(LOOK_SECONDS)
            for number in [number for number, worker in running.items() if worker.ended()]:
                worker = running.pop(number)
                error = worker.error_message()
                reports = sweep.directory.queue().progress().values()
                had_a_run = any(told["worker"] == worker.name for told in reports)
                failures = failures + 1 if error and not had_a_run else 0
                if error:
                    progress.say(f"a worker ended ({error}); another one continues")
                if failures >= MOST_FAILURES:
                    raise Failure(f"{failures} workers in a row trained nothing; the last one said: {error}")
    except KeyboardInterrupt:
        progress.say("interrupted: the workers save their runs and end")
        raise
    finally:
        workers.stop(finished=not _left(sweep))
        sweep.write_rows()
        progress.show(sweep, last=True)


def _left(sweep: Sweep) -> int:
    return sum(map(len, sweep.left()))
