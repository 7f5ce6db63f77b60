"""Hooks of the training loop: metrics, validation, checkpoints, and the files that they write.

Hooks run in this order, so that the rows up to a checkpoint's step are on disk before the checkpoint.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jaxzoo.config.config_io import to_json
from jaxzoo.models.blueprint import Variables
from jaxzoo.parallel.agreement import AgreedStop, is_leader, is_one_of_many, together
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.config import RunConfig
from jaxzoo.train.learning_curve import draw_learning_curve
from jaxzoo.train.loop import Fetch, Hook, NonFiniteError, StepInfo
from jaxzoo.train.metrics import MetricsLog, RowFile, best_steps, rows_until
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import ResumePoint
from jaxzoo.train.speed import Speed
from jaxzoo.train.state import first_not_finite
from jaxzoo.utils.progress import ProgressLine, sparkline
from jaxzoo.utils.screen import Screen, warn
from jaxzoo.utils.text_table import duration

Report = Callable[[int, Mapping[str, float]], None]
"""Shows the metrics of a step, from an update (`loss`, `accuracy`) or a validation (`valid/loss`)."""
Evaluate = Callable[[Variables], dict[str, float]]
"""Metrics of a model on the validation sets."""

PLAIN_SECONDS = 2.0
"""Shortest time between two plain lines of training progress."""
SLICE = "valid/accuracy/"


class RunFiles(NamedTuple):
    """Open files of a run; without a run directory, its metrics in memory."""

    run: RunDirectory | None
    log: MetricsLog
    speeds: RowFile | None
    """File of speed records; None: neither speed nor picture is written."""
    checkpoints: Checkpoints | None

    def draw(self) -> None:
        """Draws the learning curve into the run directory; an error there does not end the run."""
        if self.run and self.speeds:
            self.run.check_place()
            try:
                draw_learning_curve(self.log.rows, self.run.picture, title=self.run.path.name)
            except Exception as error:
                warn(f"{self.run.picture} is not drawn ({type(error).__name__}: {error}); the run continues")


@contextlib.contextmanager
def open_files(
    run: RunDirectory | None, config: RunConfig, start: ResumePoint, *, speeds: bool = False
) -> Iterator[RunFiles]:
    """Opens the files of a claimed directory. Only process 0 writes, except for the arrays of checkpoints."""
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


@dataclasses.dataclass
class RunHooks:
    """Hooks of one run. Every process of the run must make the same calls."""

    files: RunFiles
    config: RunConfig
    start: ResumePoint
    stop: AgreedStop
    report: Report
    evaluate: Evaluate
    speed: Speed | None = None
    _held: tuple[int, Fetch] | None = None

    def hooks(self) -> list[Hook]:
        """Returns the hooks in the order of calls; saves parameters from another run before (raises `OSError`)."""
        train = self.config.train
        found = [
            Hook(lambda info: self.stop.ask(), needs_state=False),
            Hook(self.record, needs_state=False, at_end=True),
            Hook(self.validate, train.eval_every),
        ]
        if self.files.checkpoints is not None:
            if self.start.is_given:
                self.save(StepInfo(self.start.step, None, lambda: self.start.state))
            found += [
                Hook(self.save_again, needs_state=False),
                Hook(self.save_best, train.eval_every),
                Hook(self.save, train.checkpoint_every, at_end=True),
            ]
        if train.stop_at_accuracy > 0:
            found.append(Hook(self.is_accurate, needs_state=False))
        return found

    def is_accurate(self, info: StepInfo) -> bool:
        """Whether the newest validation has reached the accuracy at which the run ends."""
        row = self.files.log.last("valid/accuracy")
        return row is not None and row["valid/accuracy"] >= self.config.train.stop_at_accuracy

    def record(self, info: StepInfo) -> None:
        """Records the metrics of the previous step, so that the device never waits for the fetch."""
        self._record_held()
        if info.metrics is not None:
            self._held = info.step, info.metrics

    def _record_held(self) -> None:
        if self._held is None:
            return
        step, fetch = self._held
        self._held = None
        metrics = fetch()
        _require_finite({name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}, step)
        if step % self.config.train.log_every == 0:
            self.files.log.write(step, {f"train/{name}": value for name, value in metrics.items()})
            if self.speed and self.files.speeds:
                row = self.speed.row(step)
                self.files.speeds.write(step, row)
                self.files.log.chart(step, {f"speed/{name}": value for name, value in row.items()})
        self.report(step, metrics)

    def validate(self, info: StepInfo) -> None:
        """Scores the validation sets, unless done before the run was resumed, and draws the picture."""
        assert info.state is not None
        row = self.files.log.last("valid/loss")
        if self.stop.requested or (row is not None and row["step"] == info.step):
            return
        self._record_held()
        with self.speed.pause() if self.speed else contextlib.nullcontext():
            found = self.evaluate(info.state().variables)
            _require_finite(found, info.step)
            self.report(info.step, self.files.log.write(info.step, found))
            self.files.draw()

    def save(self, info: StepInfo) -> None:
        """Saves this step in the background, unless it was saved; at the end of the run, waits until it is complete.

        A failed save is tried once more, in the foreground; the second failure is raised. (Several processes would have
        to agree on a second attempt: they raise the first failure.)

        Raises:
          OSError: the checkpoint cannot be written.
          NonFiniteError: a parameter is not finite.
        """
        self._record_held()
        try:
            self._save(info, wait=info.is_end)
        except OSError as error:
            self._try_again(info, error)

    def save_best(self, info: StepInfo) -> None:
        """Saves a step whose validation is one of the best, which are kept."""
        train = self.config.train
        if info.step in best_steps(self.files.log.rows, train.best_metric)[: train.keep_best]:
            self.save(info)

    def save_again(self, info: StepInfo) -> None:
        """Saves this step if the save of an earlier one has failed in the background."""
        assert self.files.checkpoints is not None
        if info.state is None:
            return
        try:
            self.files.checkpoints.check()
        except OSError as error:
            self._record_held()
            self._try_again(info, error)

    def _try_again(self, info: StepInfo, error: OSError) -> None:
        if is_one_of_many():
            raise error
        warn(f"{error}; not written, trying once more")
        self._save(info, wait=True)

    def _save(self, info: StepInfo, *, wait: bool) -> None:
        checkpoints = self.files.checkpoints
        assert checkpoints is not None
        assert info.state is not None
        if checkpoints.newest != info.step:
            state = info.state()
            broken = first_not_finite(state.variables)
            if broken:
                raise NonFiniteError(f"{broken} is not finite", info.step)
            cursor = self.start.stream.get_state()
            n_rows = len(self.files.log.rows)
            checkpoints.save(info.step, state, cursor=cursor, config=to_json(self.config), n_rows=n_rows)
        if wait:
            checkpoints.wait()


def _require_finite(metrics: Mapping[str, float], step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value}", step)


class Progress:
    """Prints the progress of a run: one line on a terminal, otherwise lines at least `log_every` steps apart."""

    def __init__(self, screen: Screen, *, steps: int, speed: Speed, log_every: int):
        self._line = ProgressLine(screen, PLAIN_SECONDS)
        self._steps = steps
        self._speed = speed
        self._log_every = log_every
        self._valid = ""
        self._losses: list[float] = []
        self.say = self._line.say
        self.close = self._line.close

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of some updates and of all validations."""
        live = self._line.is_live
        if "loss" in metrics:
            self._losses.append(float(metrics["loss"]))
        if "valid/loss" in metrics:
            self._valid = f"valid {_in_short(metrics)}"
            if not live:
                self.say(f"step {step}/{self._steps}  valid loss {metrics['valid/loss']:.4f}  {_in_short(metrics)}")
        elif self._line.is_due and (live or step % self._log_every == 0):
            self._line.show(self._describe(step, metrics), step, self._steps)

    def _describe(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        left = (self._steps - step) / self._speed.steps_per_second(step)
        parts = [f"step {step}/{self._steps}", f"loss {metrics['loss']:.4f}"]
        speed = self._speed.describe(step)
        if not self._line.is_live:
            return [*parts, f"accuracy {metrics['accuracy']:.3f}", *speed, f"{duration(left)} left"]
        loss = f"{parts[1]} {sparkline(self._losses)}"
        valid = [self._valid] if self._valid else []
        return [parts[0], f"{duration(left)} left", loss, speed[0], *valid, *speed[1:]]


def _in_short(metrics: Mapping[str, float]) -> str:
    """Bits per byte; otherwise accuracy by number of pairs, or overall if there are no pairs."""
    if "valid/bits_per_byte" in metrics:
        return f"{metrics['valid/bits_per_byte']:.3f} bits/byte"
    pairs = {k.removeprefix(SLICE): v for k, v in metrics.items() if k.startswith(f"{SLICE}pairs=")}
    if not pairs:
        return f"accuracy {metrics['valid/accuracy']:.3f}"
    return " ".join(f"{name} {value:.3f}" for name, value in pairs.items())
