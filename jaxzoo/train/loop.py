"""The training loop: batch -> step -> metrics, validation, checkpoint."""

import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import FrameType, TracebackType
from typing import Self

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import to_json
from jaxzoo.data.base import Stream
from jaxzoo.distributed.agreement import AgreedStop, StopRequest
from jaxzoo.models.blueprint import Variables
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.patience import Patience
from jaxzoo.train.profiling import Profiler
from jaxzoo.train.recorder import NonFiniteError, Recorder, host_metrics
from jaxzoo.train.session import Session
from jaxzoo.train.state import TrainState, first_not_finite


@dataclasses.dataclass
class Start:
    """State and stream with which training begins."""

    state: TrainState
    """The state, which training donates."""
    stream: Stream
    """Training batches from there on."""
    step: int = 0
    """Updates that `state` has seen."""
    n_rows: int = 0
    """Rows of metrics up to `step`, when it was saved."""
    is_given: bool = False
    """Whether `state` holds the parameters of another run: it is saved before the first update."""


class StopSignals:
    """Inside the block the first SIGTERM, SIGHUP or Ctrl-C only sets `requested`; a second one kills as usual.

    SIGHUP stays ignored where it is ignored already, as under nohup.

    Args:
      more: signals that do the same.
      patient: whether later signals change nothing, for jobs of a scheduler that repeats its signals.
    """

    def __init__(self, more: Collection[signal.Signals] = (), *, patient: bool = False) -> None:
        self.requested = False
        self._numbers, self._patient = [signal.SIGTERM, signal.SIGINT, *more], patient
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            self._numbers.append(hangup)
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.requested: bool = True
        for each in () if self._patient else self._before:
            signal.signal(each, signal.SIG_DFL)


class TrainingRun:
    """One run from where it begins to its end: what is due at each step, in the order metrics, validation, checkpoint.

    So all rows up to a checkpoint's step are on disk before the checkpoint is.

    Attributes:
      step: updates so far.

    Args:
      config: the experiment.
      start: where it begins.
      checkpoints: where its state goes.
      record: where its metrics go.
      stop: what may end it before its time.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        start: Start,
        checkpoints: Checkpoints,
        record: Recorder,
        stop: StopRequest,
    ):
        self.step: int = start.step
        self._config, self._stream, self._is_given = config, start.stream, start.is_given
        self._checkpoints, self._record, self._stop = checkpoints, record, stop
        self._patience = Patience()

    def begin(self, state: Callable[[], TrainState]) -> None:
        """Before the first update: saves parameters of another run, so that this one can go on without it; validates,
        where that is due and was not done before the run was stopped."""
        if self._is_given:
            self.save(state)
        self._validate(state)

    @property
    def goes_on(self) -> bool:
        """Whether there is a next update."""
        config = self._config.train
        return (
            self.step < config.steps and not self._stop.requested and not self._record.reached(config.stop_at_accuracy)
        )

    def advance(self, fetch: Callable[[], Mapping[str, float]], state: Callable[[], TrainState]) -> None:
        """After an update.

        Args:
          fetch: gives its metrics, `host_metrics`.
          state: gives the state after it.

        Raises:
          NonFiniteError: loss or gradient of this step or the one before, the validation or the parameters are not
            finite; no checkpoint is saved any more.
          OSError: metrics or a checkpoint cannot be written, with all patience.
        """
        self.step += 1
        self._record.train(self.step, fetch)
        self._validate(state)
        self._attempt(self._checkpoints.check)
        if self._due(self._config.train.checkpoint_every) or self._is_best or time.monotonic() >= self._patience.due:
            self.save(state)

    def save(self, state: Callable[[], TrainState]) -> bool:
        """Begins to save a checkpoint of this step, unless there is one; returns whether it could.

        A failure is warned of, and tried again at a later step. Raises as `advance` does.
        """
        self._record.catch_up()
        return self._checkpoints.newest == self.step or self._attempt(lambda: self._begin_to_save(state()))

    def finish(self, state: Callable[[], TrainState]) -> None:
        """Saves a checkpoint of this step and waits until it is complete; what fails is tried again. Raises as
        `advance` does."""
        while not (self.save(state) and self._attempt(self._checkpoints.wait)):
            self._patience.wait()

    def _begin_to_save(self, state: TrainState) -> None:
        broken = first_not_finite(state.variables)
        if broken:
            raise NonFiniteError(f"{broken} is not finite", self.step)
        cursor, config = self._stream.get_state(), to_json(self._config)
        self._checkpoints.save(self.step, state, cursor=cursor, config=config, n_rows=self._record.n_rows)
        self._patience.begun()

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            self._patience.failed(error, self._checkpoints.newest)
            return False
        return True

    @property
    def _is_best(self) -> bool:
        """Whether this step was validated, and is one of the best."""
        n, validated = self._config.train.keep_best, self._due(self._config.train.eval_every)
        return n > 0 and validated and self.step in self._record.best(n)

    def _validate(self, state: Callable[[], TrainState]) -> None:
        due = self._due(self._config.train.eval_every) and not self._stop.requested
        if due and not self._record.validated(self.step):
            self._record.validate(self.step, state())

    def _due(self, every: int) -> bool:
        return self.step == self._config.train.steps or (every > 0 and self.step > 0 and self.step % every == 0)


def train(
    session: Session, start: Start, checkpoints: Checkpoints, record: Recorder, stop: AgreedStop, profiler: Profiler
) -> int:
    """Trains to the end, to the wanted accuracy or until it is told to stop; returns the last step.

    There is a checkpoint of the last step when this returns.

    Raises:
      NonFiniteError: no checkpoint is made of the step that it names, nor of any later one.
      OSError: metrics or a checkpoint cannot be written.
    """
    course = TrainingRun(session.config, start, checkpoints, record, stop)
    state = start.state

    def current() -> TrainState:
        return state

    course.begin(current)
    while course.goes_on:
        with profiler.step(course.step + 1, current):
            state, metrics = session.update(state, next(start.stream))
        course.advance(functools.partial(host_metrics, metrics), current)
        stop.ask()
    course.finish(current)
    return course.step


def begin(
    session: Session,
    checkpoints: Checkpoints | None,
    config: ExperimentConfig | None = None,
    variables: Variables | None = None,
) -> Start:
    """The start of a new run, or of one that goes on from the newest checkpoint that can be used.

    Args:
      session: of the run, or of one that differs in learning rate and seed alone.
      checkpoints: those of the run; None: it is new.
      config: the run's; None: the session's.
      variables: what a new run begins with, donated; None: random ones.

    Raises:
      ValueError: the checkpoint's cursor belongs to other data.
      UnusableError: there are checkpoints, or were, and none can be used.
    """
    config = config or session.config
    stream = session.stream()
    found = checkpoints.restore_newest(session.abstract_state, to_json(config)) if checkpoints else None
    if found is None:
        return Start(session.init_state(config.train.seed, variables), stream, is_given=variables is not None)
    try:
        stream.set_state(found.seal.cursor)
    except (LookupError, TypeError) as error:
        raise ValueError(f"checkpoint {found.seal.step}: its cursor is not one of these data: {error!r}") from error
    return Start(found.state, stream, found.seal.step, found.seal.n_rows)
