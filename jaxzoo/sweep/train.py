"""Trains runs that share a program, each from the newest checkpoint of its own run directory."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxzoo.config.config_io import to_json
from jaxzoo.parallel.agreement import AgreedStop, StopSignals
from jaxzoo.sweep.lockstep import SequentialRuns, VmappedRuns
from jaxzoo.sweep.results import thinned
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.train.checkpoint import Checkpoints, UnusableError
from jaxzoo.train.config import RunConfig
from jaxzoo.train.hooks import Evaluate, RunHooks, open_files
from jaxzoo.train.loop import TrainingRun, run_loop
from jaxzoo.train.metrics import Row, read_rows
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import ResumePoint, Session
from jaxzoo.utils.screen import warn

Tell = Callable[..., None]
"""`tell(run_id, step=..., steps=..., loss=...)`."""

CURVE_POINTS = 60
"""Largest number of points of a learning curve in a result."""


class SweepRun:
    """A run of a sweep.

    Attributes:
      spec: id and config.
      start: state, stream and step at which training begins.
      training: the run in the training loop; set by `open`.
      seconds: share of the wall time of the processes that trained it.
      cpu_seconds: share of their CPU time.
    """

    def __init__(self, spec: RunSpec, run: RunDirectory, session: Session):
        self.spec: RunSpec = spec
        self._run = run
        self.start: ResumePoint = _start(session, spec.trained, run)
        self.seconds: float = 0.0
        self.cpu_seconds: float = 0.0

    def open(self, stack: contextlib.ExitStack, tell: Tell, stop: AgreedStop, evaluate: Evaluate) -> None:
        """Opens its files, which the stack closes."""
        run_id = self.spec.id
        config = self.spec.trained
        steps = config.train.steps
        tell(run_id, step=0, steps=steps)

        def report(step: int, metrics: Mapping[str, float]) -> None:
            loss = {"loss": metrics["loss"]} if "loss" in metrics else {}
            tell(run_id, step=step, **loss)

        files = stack.enter_context(open_files(self._run, config, self.start))
        hooks = RunHooks(files, config, self.start, stop, report, evaluate).hooks()
        self.training: TrainingRun = TrainingRun(
            hooks, steps=steps, step=self.start.step, is_stopped=lambda: stop.requested
        )

    @property
    def diverged(self) -> bool:
        """Whether loss, gradient, validation or parameters were not finite."""
        return self.training.failure is not None

    def rows(self) -> list[Row]:
        """Rows of its metrics."""
        return read_rows(self._run.metrics)


def _start(session: Session, config: RunConfig, run: RunDirectory) -> ResumePoint:
    """Locks a run directory and restores the newest checkpoint, or begins at step 0. Raises `InUseError`."""
    stored = to_json(config)
    if run.holds_run and any(run.checkpoints.glob("*")):
        run.claim()
        checkpoints = Checkpoints(run.checkpoints, record=run.newest_checkpoint)
        with contextlib.suppress(UnusableError):
            start = session.begin(checkpoints, config)
            checkpoints.begin_at(None if checkpoints.newest is None else start.step)
            run.write_config(stored)
            return start
        warn(f"{run.path}: no checkpoint can be used; the run begins again")
    run.create(stored, session.dataset.manifest())
    return session.begin(config=config)


def train_runs(
    runs: Sequence[SweepRun],
    session: Session,
    *,
    vectorized: bool,
    evaluate: Evaluate,
    tell: Tell,
    stop: StopSignals,
) -> Iterator[tuple[SweepRun, Any]]:
    """Trains runs that begin at the same step; yields each with its last state when it has ended.

    A run that is stopped by `stop` is saved, and yielded with the state None.
    """
    rates = [run.spec.trained.optimizer.learning_rate for run in runs]
    step_function = (VmappedRuns if vectorized else SequentialRuns)(session, [run.start.state for run in runs], rates)
    stream = runs[0].start.stream
    agreed = AgreedStop(stop, session.mesh)
    with contextlib.ExitStack() as stack:
        for run in runs:
            run.start.stream = stream  # the cursor in the checkpoints of all runs
            run.open(stack, tell, agreed, evaluate)
        active = list(runs)
        clock = Clock()
        for ended in run_loop(step_function, stream, [run.training for run in runs]):
            clock.share(active)
            for i, run in enumerate(runs):
                if run.training in ended:
                    active.remove(run)
                    yield run, None if stop.requested else step_function.state(i)
                    clock = Clock()  # excludes the time that the caller spent on the result


class Clock:
    """Clock of this process, whose time is shared among runs."""

    def __init__(self) -> None:
        self._before = time.perf_counter(), time.process_time()

    def share(self, runs: Sequence[SweepRun]) -> None:
        """Adds an equal share of the time since the last call to each run."""
        before, self._before = self._before, (time.perf_counter(), time.process_time())
        for run in runs:
            run.seconds += (self._before[0] - before[0]) / len(runs)
            run.cpu_seconds += (self._before[1] - before[1]) / len(runs)


def curve(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """Learning curve of a result: training loss and validation accuracy by step, thinned."""
    names = {"train": "train/loss", "valid": "valid/accuracy"}
    found = {
        key: [(int(row["step"]), round(row[name], 5)) for row in rows if name in row] for key, name in names.items()
    }
    return {key: thinned(points, CURVE_POINTS) for key, points in found.items()}
