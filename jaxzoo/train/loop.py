"""The training loop: batch -> step -> metrics, validation, checkpoint."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import jax

from jaxzoo.config.config_io import to_json
from jaxzoo.models.blueprint import Variables
from jaxzoo.parallel.agreement import AgreedStop, is_leader, together
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.config import ExperimentConfig
from jaxzoo.train.metrics import MetricsLog, RowFile, best_steps, rows_until
from jaxzoo.train.patience import patiently
from jaxzoo.train.plot import draw_learning_curve
from jaxzoo.train.profiling import StepTracer
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session
from jaxzoo.train.speed import Speed
from jaxzoo.train.start import ResumePoint
from jaxzoo.train.state import TrainState, first_not_finite
from jaxzoo.train.step import Metrics

Fetch = Callable[[], Mapping[str, float]]
"""Gives the metrics of a step as numbers; waits for the device."""
Current = Callable[[], TrainState]
"""Gives the newest state."""
Report = Callable[[int, Mapping[str, float]], None]
"""Shows metrics of a step: those of an update (`loss`, `accuracy`), or those of a validation (`valid/loss`)."""


Evaluate = Callable[[Variables], dict[str, float]]
"""Metrics of a model on the validation sets."""


class NonFiniteError(ArithmeticError):
    """Loss, gradient, validation or parameters of `step` are not finite."""

    def __init__(self, what: str, step: int):
        super().__init__(f"{what} at step {step}")
        self.step = step


class TrainingRun:
    """One run from where it begins to its end: what is due at each step, in the order metrics, validation, checkpoint.

    So all rows up to a checkpoint's step are on disk before the checkpoint is. Training metrics are recorded one step
    late: fetching those of the step before, while the device works on the next one, never keeps the device waiting.

    Inside the `with` block its files are open. Every process of the run must make the same calls; process 0 alone
    writes, but for the arrays of checkpoints.

    Attributes:
      step: updates so far.
      log: metrics so far.
      checkpoints: of the run.

    Args:
      run: the claimed directory.
      stop: what may end it before its time.
      evaluate: scores the validation sets.
      config: the experiment; None: the session's.
      speed: its clock; None: neither its speed nor a picture is kept.
    """

    def __init__(
        self,
        session: Session,
        run: RunDirectory,
        start: ResumePoint,
        stop: AgreedStop,
        report: Report,
        evaluate: Evaluate,
        *,
        config: ExperimentConfig | None = None,
        speed: Speed | None = None,
    ):
        self.step: int = start.step
        self._session, self._run, self._start, self._stop, self._report = session, run, start, stop, report
        self._evaluate = evaluate
        self._config, self._speed = config or session.config, speed
        self._files = contextlib.ExitStack()
        self._held: tuple[int, Fetch] | None = None

    def __enter__(self) -> Self:
        """Opens the files. Raises OSError."""
        run, config, begin = self._run, self._config.train, self._start.step or -1
        with contextlib.ExitStack() as files:
            with together(OSError):
                fields = to_json(self._config)
                log = MetricsLog(run.metrics, begin, n_rows=self._start.n_rows, writes=is_leader(), config=fields)
                self.log: MetricsLog = files.enter_context(log)
                self._speeds: RowFile | None = None
                if self._speed is not None and is_leader():
                    self._speeds = files.enter_context(RowFile(run.speed, rows_until(run.speed, begin)))
            record, check = run.newest_checkpoint, run.check_place
            saved = Checkpoints(run.checkpoints, config.keep_checkpoints, record, self._best, check)
            self.checkpoints: Checkpoints = files.enter_context(saved)
            self._files = files.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def baselines(self) -> str:
        """Records what a model must beat; returns it as a line, empty where the data do not know it."""
        scores = self._session.dataset.baselines()
        if not scores:
            return ""
        names = ("bits_per_byte", "perplexity")
        self.log.write(0, {f"baseline/{k}/{name}": getattr(s, name) for k, s in scores.items() for name in names})
        return "bits per byte to beat: " + ", ".join(f"{k} {score.bits_per_byte:.3f}" for k, score in scores.items())

    def train(self, around: StepTracer) -> None:
        """Trains to the end, to the wanted accuracy or until it is told to stop, and saves the last step.

        Raises:
          NonFiniteError: no checkpoint is made of the step that it names, nor of any later one.
          OSError: metrics or a checkpoint cannot be written, with all patience.
        """
        state = self._start.state

        def current() -> TrainState:
            return state

        self.begin(current)
        while self.goes_on:
            with around(self.step + 1, current):
                state, metrics = self._session.update(state, next(self._start.stream))
            self.advance(functools.partial(host_metrics, metrics), current)
            self._stop.ask()
        self.save(current, wait=True)

    def begin(self, state: Current) -> None:
        """Begins, before the first update: saves parameters of another run, so that this one can go on without it, and
        validates where that is due and was not done before the run was stopped."""
        if self._start.is_given:
            self.save(state)
        self._validate(state)

    @property
    def goes_on(self) -> bool:
        """Whether there is a next update: not after a stop, nor where the newest validation has the wanted accuracy."""
        config, row = self._config.train, self.log.last("valid/accuracy")
        is_reached = config.stop_at_accuracy > 0 and row and row["valid/accuracy"] >= config.stop_at_accuracy
        return self.step < config.steps and not self._stop.requested and not is_reached

    @property
    def n_until_due(self) -> int:
        """Number of updates up to the next after which more than its metrics is due."""
        config, step = self._config.train, self.step
        periods = (config.steps, config.eval_every, config.checkpoint_every)
        return min(every - step % every for every in periods if every > 0)

    def count(self, fetch: Fetch) -> None:
        """After an update, with its metrics, where nothing else is due. Raises as `train` does."""
        self.step += 1
        self._catch_up()
        self._held = self.step, fetch

    def advance(self, fetch: Fetch, state: Current) -> None:
        """After an update, with its metrics and the state after it. Raises as `train` does."""
        self.count(fetch)
        self._validate(state)
        newest = self.checkpoints.newest
        patiently(self.checkpoints.check, together=True)
        has_failed = self.checkpoints.newest != newest
        is_best = self._due(self._config.train.eval_every) and self.step in self._best()
        if self._due(self._config.train.checkpoint_every) or is_best or has_failed:
            self.save(state, wait=has_failed)

    def save(self, state: Current, *, wait: bool = False) -> None:
        """Saves a checkpoint of this step, unless there is one: in the background, or until it is complete.

        What fails is tried again, and training waits. Raises as `train` does.
        """
        self._catch_up()
        attempts = itertools.count()

        def attempt() -> None:
            is_first = next(attempts) == 0
            if self.checkpoints.newest != self.step:
                newest = state()
                broken = first_not_finite(newest.variables)
                if broken:
                    raise NonFiniteError(f"{broken} is not finite", self.step)
                cursor, config = self._start.stream.get_state(), to_json(self._config)
                self.checkpoints.save(self.step, newest, cursor=cursor, config=config, n_rows=len(self.log.rows))
            if wait or not is_first:
                self.checkpoints.wait()

        patiently(attempt, together=True)

    def draw(self) -> None:
        """Draws the learning curve, where a picture is kept."""
        if self._speeds:
            self._run.check_place()
            draw_learning_curve(self.log.rows, self._run.picture, title=self._run.path.name)

    def _catch_up(self) -> None:
        """Records the training metrics that are held back."""
        if self._held is None:
            return
        (step, fetch), self._held = self._held, None
        metrics = fetch()
        _require_finite({name: metrics[name] for name in ("loss", "grad_norm")}, step)
        if step % self._config.train.log_every == 0:
            self.log.write(step, {f"train/{name}": value for name, value in metrics.items()})
            if self._speed and self._speeds:
                row = self._speed.row(step)
                self._speeds.write(step, row)
                self.log.chart(step, {f"speed/{name}": value for name, value in row.items()})
        self._report(step, metrics)

    def _validate(self, state: Current) -> None:
        """Scores the validation sets where that is due and not done, records the result and draws the picture."""
        row = self.log.last("valid/loss")
        is_done = row is not None and row["step"] == self.step
        if not self._due(self._config.train.eval_every) or self._stop.requested or is_done:
            return
        self._catch_up()
        with self._speed.pause() if self._speed else contextlib.nullcontext():
            metrics = self._evaluate(state().variables)
            _require_finite(metrics, self.step)
            self._report(self.step, self.log.write(self.step, metrics))
            self.draw()

    def _best(self, among: Collection[int] | None = None) -> list[int]:
        """Steps of the best validations so far, as many as are kept; of all steps, or of those asked for."""
        return best_steps(self.log.rows, self._config.train.best_metric, among)[: self._config.train.keep_best]

    def _due(self, every: int) -> bool:
        return self.step == self._config.train.steps or (every > 0 and self.step > 0 and self.step % every == 0)


def host_metrics(metrics: Metrics) -> dict[str, float]:
    """Metrics of a step as numbers; waits for the device."""
    return {name: float(value) for name, value in jax.device_get(metrics).items()}


def _require_finite(metrics: Mapping[str, float], step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value}", step)
