"""Metrics of a run, sent to file, screen and picture."""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import jax

from jaxzoo.train.metrics import MetricsLog, RowFile, best_steps
from jaxzoo.train.plot import draw_learning_curve
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session
from jaxzoo.train.speed import Speed
from jaxzoo.train.state import TrainState
from jaxzoo.train.step import Metrics


class NonFiniteError(ArithmeticError):
    """Loss, gradient, validation or parameters of `step` are not finite."""

    def __init__(self, what: str, step: int):
        super().__init__(f"{what} at step {step}")
        self.step = step


class ProgressReporter(Protocol):
    """Receiver of the progress of a run."""

    def say(self, text: str) -> None:
        """A line of text."""

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a training step."""

    def valid(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a validation."""

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Time that is not training."""
        ...


class Recorder:
    """Sends metrics to file, progress reporter and picture, training metrics one step late.

    Fetching the metrics of the step before, while the device works on the next one, never keeps the device
    waiting.

    Args:
      session: what trains.
      run: where the picture goes.
      log: where the metrics go.
      progress: shows them.
      draws: whether there is a picture.
      clock: measures the speed, and the file of its rows; None: neither.
    """

    def __init__(
        self,
        session: Session,
        run: RunDirectory,
        log: MetricsLog,
        progress: ProgressReporter,
        *,
        draws: bool = True,
        clock: tuple[Speed, RowFile] | None = None,
    ):
        self._clock = clock
        self._session, self._run, self._log, self._progress, self._draws = session, run, log, progress, draws
        self._held: tuple[int, Callable[[], Mapping[str, float]]] | None = None

    def train(self, step: int, fetch: Callable[[], Mapping[str, float]]) -> None:
        """Takes what fetches the metrics of `step`, and records those of the step before.

        Raises:
          NonFiniteError: that step's loss or gradient is not finite.
        """
        self.catch_up()
        self._held = step, fetch

    def catch_up(self) -> None:
        """Records what is held back; raises as `train` does."""
        if self._held is None:
            return
        (step, fetch), self._held = self._held, None
        metrics = fetch()
        for name in ("loss", "grad_norm"):
            if not math.isfinite(metrics[name]):
                raise NonFiniteError(f"{name} is {metrics[name]}", step)
        if step % self._session.config.train.log_every == 0:
            self._log.write(step, {f"train/{name}": value for name, value in metrics.items()})
            if self._clock is not None:
                speed, file = self._clock
                row = speed.row(step)
                file.write(step, row)
                self._log.chart(step, {f"speed/{name}": value for name, value in row.items()})
        self._progress.train(step, metrics)

    def validate(self, step: int, state: TrainState) -> None:
        """Scores the validation sets, records the result and draws the picture.

        Raises:
          NonFiniteError: a metric of the validation, or of the training step before, is not finite.
        """
        self.catch_up()
        with self._progress.pause():
            metrics = self._session.evaluate(state.variables)
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise NonFiniteError(f"{name} is {value}", step)
            row = self._log.write(step, metrics)
            self._progress.valid(step, row)
            self.draw()

    def baselines(self) -> None:
        """Records and prints what a model must beat, where the data know it."""
        scores = self._session.dataset.baselines()
        if scores:
            names = ("bits_per_byte", "perplexity")
            row = {f"baseline/{k}/{name}": getattr(s, name) for k, s in scores.items() for name in names}
            self._log.write(0, row)
            text = ", ".join(f"{k} {score.bits_per_byte:.3f}" for k, score in scores.items())
            self._progress.say(f"bits per byte to beat: {text}")

    def draw(self) -> None:
        """Draws the learning curve."""
        if self._draws:
            self._run.follow()
            draw_learning_curve(self._log.rows, self._run.picture, title=self._run.path.name)

    @property
    def n_rows(self) -> int:
        """Rows of metrics so far."""
        return len(self._log.rows)

    def validated(self, step: int) -> bool:
        """Whether there is a validation of `step`."""
        row = self._log.last("valid/loss")
        return row is not None and row["step"] == step

    def best(self, n: int, among: Collection[int] | None = None) -> list[int]:
        """Steps of the n best validations so far, the best first; of all steps, or of those asked for."""
        return best_steps(self._log.rows, self._session.config.train.best_metric, among)[:n]

    def reached(self, accuracy: float) -> bool:
        """Whether the newest validation has at least this accuracy; never for 0."""
        row = self._log.last("valid/accuracy")
        return accuracy > 0 and row is not None and row["valid/accuracy"] >= accuracy


def host_metrics(metrics: Metrics) -> dict[str, float]:
    """Metrics of a step as numbers; waits for the device."""
    return {name: float(value) for name, value in jax.device_get(metrics).items()}
