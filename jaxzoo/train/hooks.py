"""Hooks of the training loop: metrics, validation, checkpoints, and the files that they write.

In this order, so that all rows up to a checkpoint's step are on disk before the checkpoint is.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jaxzoo.config.config_io import to_json
from jaxzoo.data.base import Stream
from jaxzoo.models.blueprint import Variables
from jaxzoo.parallel.agreement import AgreedStop, is_leader, is_one_of_many, together
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.learning_curve import draw_learning_curve
from jaxzoo.train.loop import Fetch, Hook, NonFiniteError, StepInfo
from jaxzoo.train.metrics import MetricsLog, RowFile, best_steps, rows_until
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import ResumePoint
from jaxzoo.train.speed import Speed
from jaxzoo.train.state import first_not_finite
from jaxzoo.utils.progress import ProgressLine
from jaxzoo.utils.screen import Screen, warn
from jaxzoo.utils.text_table import duration

Report = Callable[[int, Mapping[str, float]], None]
"""Shows metrics of a step: those of an update (`loss`, `accuracy`), or those of a validation (`valid/loss`)."""
Evaluate = Callable[[Variables], dict[str, float]]
"""Metrics of a model on the validation sets."""

PLAIN_SECONDS = 2.0
"""Shortest time between two plain lines of training progress."""
SLICE = "valid/accuracy/"


class RunFiles(NamedTuple):
    """Open files of a run; without a directory, its metrics in memory."""

    run: RunDirectory | None
    log: MetricsLog
    speeds: RowFile | None
    """None: the speed is not kept, nor is a picture."""
    checkpoints: Checkpoints | None

    def draw(self) -> None:
        """Draws the learning curve, where a picture is kept. A picture that fails does not end the run."""
        if self.run and self.speeds:
            self.run.check_place()
            try:
                draw_learning_curve(self.log.rows, self.run.picture, title=self.run.path.name)
            except Exception as error:
                warn(f"{self.run.picture} is not drawn ({type(error).__name__}: {error}); the run goes on")


@contextlib.contextmanager
def open_files(
    run: RunDirectory | None, config: RunConfig, start: ResumePoint, *, speeds: bool = False
) -> Iterator[RunFiles]:
    """Opens the files of a claimed directory; process 0 alone writes, but for the arrays of checkpoints.

    Raises OSError.
    """
    if run is None:
        yield RunFiles(None, MetricsLog(None), None, None)
        return
    begin = start.step or -1
    with contextlib.ExitStack() as files:
        speed_file = None
        with together(OSError):
            log = MetricsLog(run.metrics, begin, n_rows=start.n_rows, writes=is_leader(), config=to_json(config))
            files.enter_context(log)
            if speeds and is_leader():
                speed_file = files.enter_context(RowFile(run.speed, rows_until(run.speed, begin)))
        train = config.train
        checkpoints = Checkpoints(
            run.checkpoints,
            train.keep_checkpoints,
            run.newest_checkpoint,
            best=lambda steps: best_steps(log.rows, train.best_metric, steps)[: train.keep_best],
            prepare=run.check_place,
        )
        yield RunFiles(run, log, speed_file, files.enter_context(checkpoints))


def make_hooks(
    files: RunFiles,
    config: RunConfig,
    start: ResumePoint,
    stop: AgreedStop,
    report: Report,
    evaluate: Evaluate,
    *,
    speed: Speed | None = None,
) -> list[Hook]:
    """The hooks of a run, from where it begins.

    Parameters of another run are saved first, so that this one can go on without it. Every process must make the same
    calls.

    Raises:
      OSError: they cannot be saved.
    """
    train = config.train
    metrics = MetricsHook(files, train.log_every, report, speed)
    validation = ValidationHook(files, metrics, report, evaluate, stop, speed)
    hooks = [
        Hook(lambda info: stop.ask(), needs_state=False),
        Hook(metrics, needs_state=False, at_end=True),
        Hook(validation, train.eval_every),
    ]
    if files.checkpoints is not None:
        saving = CheckpointHook(files.checkpoints, files.log, metrics, start.stream, config)
        if start.is_given:
            saving(StepInfo(start.step, None, lambda: start.state))
        hooks += [
            Hook(saving.save_again, needs_state=False),
            Hook(saving.save_best, train.eval_every),
            Hook(saving, train.checkpoint_every, at_end=True),
        ]
    if train.stop_at_accuracy > 0:
        hooks.append(Hook(lambda info: _is_reached(files.log, train), needs_state=False))
    return hooks


def _is_reached(log: MetricsLog, config: TrainConfig) -> bool:
    """Whether the newest validation has the wanted accuracy."""
    row = log.last("valid/accuracy")
    return row is not None and row["valid/accuracy"] >= config.stop_at_accuracy


class MetricsHook:
    """Records training metrics one step late: fetching those of the step before, while the device works on the next
    one, never keeps the device waiting."""

    def __init__(self, files: RunFiles, log_every: int, report: Report, speed: Speed | None):
        self._files = files
        self._log_every = log_every
        self._report = report
        self._speed = speed
        self._held: tuple[int, Fetch] | None = None

    def __call__(self, info: StepInfo) -> None:
        self.catch_up()
        if info.metrics is not None:
            self._held = info.step, info.metrics

    def catch_up(self) -> None:
        """Records the metrics that are held back. Raises NonFiniteError, or OSError where they cannot be written."""
        if self._held is None:
            return
        step, fetch = self._held
        self._held = None
        metrics = fetch()
        _require_finite({name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}, step)
        if step % self._log_every == 0:
            log = self._files.log
            speeds = self._files.speeds
            log.write(step, {f"train/{name}": value for name, value in metrics.items()})
            if self._speed and speeds:
                row = self._speed.row(step)
                speeds.write(step, row)
                log.chart(step, {f"speed/{name}": value for name, value in row.items()})
        self._report(step, metrics)


class ValidationHook:
    """Scores the validation sets, unless that was done before the run was resumed, and draws the picture."""

    def __init__(
        self,
        files: RunFiles,
        metrics: MetricsHook,
        report: Report,
        evaluate: Evaluate,
        stop: AgreedStop,
        speed: Speed | None,
    ):
        self._files = files
        self._metrics = metrics
        self._report = report
        self._evaluate = evaluate
        self._stop = stop
        self._speed = speed

    def __call__(self, info: StepInfo) -> None:
        assert info.state is not None
        row = self._files.log.last("valid/loss")
        if self._stop.requested or (row is not None and row["step"] == info.step):
            return
        self._metrics.catch_up()
        with self._speed.pause() if self._speed else contextlib.nullcontext():
            found = self._evaluate(info.state().variables)
            _require_finite(found, info.step)
            self._report(info.step, self._files.log.write(info.step, found))
            self._files.draw()


class CheckpointHook:
    """Saves checkpoints in the background; at the end it waits until the last one is complete.

    A save that fails is tried once more, and training waits for it; the second failure is raised. (Several processes
    would have to agree on that: the first failure is raised.)
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        log: MetricsLog,
        metrics: MetricsHook,
        stream: Stream,
        config: RunConfig,
    ):
        self._checkpoints = checkpoints
        self._log = log
        self._metrics = metrics
        self._stream = stream
        self._config = config

    def __call__(self, info: StepInfo) -> None:
        """Saves this step, unless it was. Raises OSError, or NonFiniteError for parameters that are not finite."""
        self._metrics.catch_up()
        try:
            self._save(info, wait=info.is_end)
        except OSError as error:
            self._try_again(info, error)

    def save_best(self, info: StepInfo) -> None:
        """Saves a step whose validation is among the best, which are kept."""
        train = self._config.train
        if info.step in best_steps(self._log.rows, train.best_metric)[: train.keep_best]:
            self(info)

    def save_again(self, info: StepInfo) -> None:
        """Saves this step in place of an earlier one whose save has failed by now."""
        if info.state is None:
            return
        try:
            self._checkpoints.check()
        except OSError as error:
            self._metrics.catch_up()
            self._try_again(info, error)

    def _try_again(self, info: StepInfo, error: OSError) -> None:
        if is_one_of_many():
            raise error
        warn(f"{error}; not written, trying once more")
        self._save(info, wait=True)

    def _save(self, info: StepInfo, *, wait: bool) -> None:
        assert info.state is not None
        if self._checkpoints.newest != info.step:
            state = info.state()
            broken = first_not_finite(state.variables)
            if broken:
                raise NonFiniteError(f"{broken} is not finite", info.step)
            cursor = self._stream.get_state()
            config = to_json(self._config)
            self._checkpoints.save(info.step, state, cursor=cursor, config=config, n_rows=len(self._log.rows))
        if wait:
            self._checkpoints.wait()


def _require_finite(metrics: Mapping[str, float], step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value}", step)


class Progress:
    """Prints the progress of a run of so many steps: one line on a terminal, elsewhere lines that are at least
    `log_every` steps apart."""

    def __init__(self, screen: Screen, *, steps: int, speed: Speed, log_every: int):
        self._line = ProgressLine(screen, PLAIN_SECONDS)
        self._steps = steps
        self._speed = speed
        self._log_every = log_every
        self._valid = ""
        self.say = self._line.say
        self.close = self._line.close

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of an update from time to time, those of a validation always."""
        live = self._line.is_live
        if "valid/loss" in metrics:
            self._valid = f"valid {_in_short(metrics)}"
            if not live:
                self.say(f"step {step}/{self._steps}  valid loss {metrics['valid/loss']:.4f}  {_in_short(metrics)}")
        elif self._line.is_due and (live or step % self._log_every == 0):
            self._line.show(self._describe(step, metrics), step, self._steps)

    def _describe(self, step: int, metrics: Mapping[str, float]) -> str:
        left = (self._steps - step) / self._speed.steps_per_second(step)
        parts = [
            f"step {step}/{self._steps}",
            f"loss {metrics['loss']:.4f}",
            f"accuracy {metrics['accuracy']:.3f}",
            *([self._valid] if self._valid and self._line.is_live else []),
            *self._speed.describe(step),
            f"{duration(left)} left",
        ]
        return "  ".join(parts)


def _in_short(metrics: Mapping[str, float]) -> str:
    """Bits per byte; else accuracy by number of pairs, or overall where there are no pairs."""
    if "valid/bits_per_byte" in metrics:
        return f"{metrics['valid/bits_per_byte']:.3f} bits/byte"
    pairs = {k.removeprefix(SLICE): v for k, v in metrics.items() if k.startswith(f"{SLICE}pairs=")}
    if not pairs:
        return f"accuracy {metrics['valid/accuracy']:.3f}"
    return " ".join(f"{name} {value:.3f}" for name, value in pairs.items())
