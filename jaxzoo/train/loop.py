"""The training loop: batch -> step -> metrics, validation, checkpoint."""

import dataclasses
import math
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

import jax

from jaxzoo.config_io import to_json
from jaxzoo.data.base import Stream
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.metrics import MetricsLog
from jaxzoo.train.plot import draw_learning_curve
from jaxzoo.train.progress import Progress
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session
from jaxzoo.train.state import TrainState
from jaxzoo.train.step import Metrics


class NonFiniteError(ArithmeticError):
    """Loss or gradient of a step is infinite or not a number."""


@dataclasses.dataclass
class Start:
    """Where training begins."""

    state: TrainState
    """The state, which training donates."""
    stream: Stream
    """Training batches from there on."""
    step: int = 0
    """Updates that `state` has seen."""
    n_rows: int = 0
    """Rows of metrics up to `step`, when it was saved."""


class StopSignals:
    """Inside the block the first SIGTERM or Ctrl-C only sets `requested`; a second one kills as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)


class Recorder:
    """Sends metrics to file, screen and picture, training metrics one step late.

    Fetching the metrics of the step before, while the device works on the next one, never keeps the device
    waiting.
    """

    def __init__(self, session: Session, run: RunDirectory, log: MetricsLog, progress: Progress):
        self._session, self._run, self._log, self._progress = session, run, log, progress
        self._held: tuple[int, Metrics] | None = None

    def train(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of `step` and records those of the step before.

        Raises:
          NonFiniteError: that step's loss or gradient is not finite.
        """
        self.catch_up()
        self._held = step, metrics

    def catch_up(self) -> None:
        """Records what is held back; raises as `train` does."""
        if self._held is None:
            return
        (step, held), self._held = self._held, None
        metrics = {name: float(value) for name, value in jax.device_get(held).items()}
        for name in ("loss", "grad_norm"):
            if not math.isfinite(metrics[name]):
                raise NonFiniteError(f"{name} is {metrics[name]} at step {step}")
        if step % self._session.config.train.log_every == 0:
            self._log.write(step, {f"train/{name}": value for name, value in metrics.items()})
        self._progress.train(step, metrics)

    def validate(self, step: int, state: TrainState) -> None:
        """Scores the validation sets, records the result and draws the picture."""
        self.catch_up()
        with self._progress.pause():
            row = self._log.write(step, self._session.evaluate(state.variables))
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
        draw_learning_curve(self._log.rows, self._run.picture, title=self._run.path.name)

    @property
    def n_rows(self) -> int:
        """Rows of metrics so far."""
        return len(self._log.rows)

    def validated(self, step: int) -> bool:
        """Whether there is a validation of `step`."""
        row = self._log.last("valid/loss")
        return row is not None and row["step"] == step

    def reached(self, accuracy: float) -> bool:
        """Whether the newest validation has at least this accuracy; never for 0."""
        row = self._log.last("valid/accuracy")
        return accuracy > 0 and row is not None and row["valid/accuracy"] >= accuracy


def train(session: Session, start: Start, checkpoints: Checkpoints, record: Recorder, stop: StopSignals) -> int:
    """Trains to the end, to the wanted accuracy or until it is told to stop; returns the last step.

    A checkpoint of the last step is on its way when this returns. What is due at a step comes in the order
    metrics, validation, checkpoint: so all rows up to a checkpoint's step are on disk before the
    checkpoint is.

    Raises:
      NonFiniteError: no checkpoint is made of the step that it names, nor of any later one.
      OSError: metrics or a checkpoint cannot be written.
    """
    config = session.config.train
    state, step = start.state, start.step

    def due(every: int) -> bool:
        return step == config.steps or (every > 0 and step > 0 and step % every == 0)

    def validate() -> None:
        if due(config.eval_every) and not stop.requested and not record.validated(step):
            record.validate(step, state)

    def save() -> None:
        record.catch_up()
        if checkpoints.newest != step:
            cursor = start.stream.get_state()
            checkpoints.save(step, state, cursor=cursor, config=to_json(session.config), n_rows=record.n_rows)

    validate()
    while step < config.steps and not stop.requested and not record.reached(config.stop_at_accuracy):
        state, metrics = session.update(state, next(start.stream))
        step += 1
        record.train(step, metrics)
        validate()
        if due(config.checkpoint_every):
            save()
    save()
    return step


def begin(session: Session, checkpoints: Checkpoints | None) -> Start:
    """The start of a new run, or of one that goes on from the newest checkpoint that can be used.

    Raises:
      ValueError: the checkpoint's cursor belongs to other data.
      UnusableError: there are checkpoints, or were, and none can be used.
    """
    stream = session.dataset.train()
    found = checkpoints.restore_newest(session.abstract_state, to_json(session.config)) if checkpoints else None
    if found is None:
        return Start(session.init_state(), stream)
    stream.set_state(found.seal.cursor)
    return Start(found.state, stream, found.seal.step, found.seal.n_rows)
