"""Trains runs that share a program, each in a run directory of its own, from its newest checkpoint."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxzoo.config.config_io import to_json
from jaxzoo.parallel.agreement import AgreedStop, StopSignals
from jaxzoo.sweep.lockstep import SequentialRuns, VmappedRuns
from jaxzoo.sweep.results import thinned
from jaxzoo.sweep.task import Task
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.config import ExperimentConfig
from jaxzoo.train.loop import Current, Evaluate, Fetch, NonFiniteError, TrainingRun
from jaxzoo.train.metrics import Row, read_rows
from jaxzoo.train.restore import UnusableError
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session
from jaxzoo.train.start import ResumePoint, begin
from jaxzoo.utils.screen import warn

Tell = Callable[..., None]
"""`tell(task, step=..., steps=..., loss=...)`."""

CURVE_POINTS = 60
"""Largest number of points of a learning curve in a result."""


class SweepRun:
    """One of the runs.

    Attributes:
      task: the run of the sweep.
      start: state, stream and step at which it begins.
      seconds: its share of the wall time of the processes that trained it.
      cpu_seconds: its share of their CPU time.
      diverged: the step after which loss or gradient were not finite; None: they are.
    """

    def __init__(self, task: Task, run: RunDirectory, session: Session, evaluate: Evaluate):
        self.task: Task = task
        self._run, self._session, self._evaluate = run, session, evaluate
        self.start: ResumePoint = _start(session, task.trained, run)
        self.seconds: float = 0.0
        self.cpu_seconds: float = 0.0
        self.diverged: int | None = None

    def open(self, stack: contextlib.ExitStack, tell: Tell, stop: StopSignals) -> None:
        """Opens its files until the stack is left."""
        task, config = self.task.id, self.task.trained
        tell(task, step=0, steps=config.train.steps)

        def report(step: int, metrics: Mapping[str, float]) -> None:
            loss = {"loss": metrics["loss"]} if "loss" in metrics else {}
            tell(task, step=step, **loss)

        course = TrainingRun(
            self._session,
            self._run,
            self.start,
            AgreedStop(stop, self._session.mesh),
            report,
            self._evaluate,
            config=config,
        )
        self.course: TrainingRun = stack.enter_context(course)

    def begin(self, state: Current) -> None:
        """Does what is due before the first step."""
        self._guarded(lambda: self.course.begin(state))

    def count(self, fetch: Fetch) -> None:
        """Keeps the metrics of a step after which nothing else is due."""
        self._guarded(lambda: self.course.count(fetch))

    def advance(self, fetch: Fetch, state: Current) -> None:
        """Does what is due after a step."""
        self._guarded(lambda: self.course.advance(fetch, state))

    def goes_on(self, state: Current) -> bool:
        """Whether there is a next step; otherwise the run is saved."""
        if self.diverged is None and self.course.goes_on:
            return True
        self._guarded(lambda: self.course.save(state, wait=True))
        return False

    def _guarded(self, due: Callable[[], None]) -> None:
        if self.diverged is None:
            try:
                due()
            except NonFiniteError as error:
                self.diverged = error.step

    def rows(self) -> list[Row]:
        """Rows of its metrics."""
        return read_rows(self._run.metrics)


def _start(session: Session, config: ExperimentConfig, run: RunDirectory) -> ResumePoint:
    """Locks a run directory and opens the run at its newest checkpoint, or at step 0. Raises `InUseError`."""
    stored = to_json(config)
    if run.holds_run and any(run.checkpoints.glob("*")):
        run.claim()
        checkpoints = Checkpoints(run.checkpoints, record=run.newest_checkpoint)
        with contextlib.suppress(UnusableError):
            start = begin(session, checkpoints, config)
            checkpoints.begin_at(None if checkpoints.newest is None else start.step)
            run.write_config(stored)
            return start
        warn(f"{run.path}: no checkpoint can be used; the run begins again")
    run.create(stored, session.dataset.manifest())
    return begin(session, None, config)


def train_members(
    members: Sequence[SweepRun], session: Session, *, vectorized: bool, tell: Tell, stop: StopSignals
) -> Iterator[tuple[SweepRun, Any]]:
    """Trains runs that begin at the same step; yields each with its last state as soon as it has ended.

    A run that `stop` has stopped is saved, and yielded with the state None.
    """
    rates = [member.task.trained.optimizer.learning_rate for member in members]
    lanes = (VmappedRuns if vectorized else SequentialRuns)(session, [member.start.state for member in members], rates)
    stream, active = members[0].start.stream, list(range(len(members)))
    for member in members:
        member.start.stream = stream  # the checkpoint of each says where its next batch is, whoever goes on with it
    states = [functools.partial(lanes.state, i) for i in active]
    with contextlib.ExitStack() as stack:
        for member, state in zip(members, states, strict=True):
            member.open(stack, tell, stop)
            member.begin(state)
        clock = Clock()
        while active:
            for i in [i for i in active if not members[i].goes_on(states[i])]:
                active.remove(i)
                clock.share([members[i]])
                yield members[i], None if stop.requested else states[i]()
                clock = Clock()  # what others did with the result does not count
            if not active:
                break
            n_steps = min(lanes.at_once, *(members[i].course.n_until_due for i in active))
            *before, last = lanes.update([next(stream) for _ in range(n_steps)], active)
            for i in active:
                for fetches in before:
                    members[i].count(fetches[i])
                members[i].advance(last[i], states[i])
            clock.share([members[i] for i in active])


class Clock:
    """Time of this process, shared among runs."""

    def __init__(self) -> None:
        self._before = time.perf_counter(), time.process_time()

    def share(self, members: Sequence[SweepRun]) -> None:
        """Adds an equal share of the time since the last call to each run."""
        before, self._before = self._before, (time.perf_counter(), time.process_time())
        for member in members:
            member.seconds += (self._before[0] - before[0]) / len(members)
            member.cpu_seconds += (self._before[1] - before[1]) / len(members)


def curve(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """Learning curve for a result: training loss and validation accuracy by step, a few points each."""
    names = {"train": "train/loss", "valid": "valid/accuracy"}
    found = {
        key: [(int(row["step"]), round(row[name], 5)) for row in rows if name in row] for key, name in names.items()
    }
    return {key: thinned(points, CURVE_POINTS) for key, points in found.items()}
