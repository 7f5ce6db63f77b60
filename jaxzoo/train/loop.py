"""The training loop: next batches, step function, hooks, until every run has ended.

The same loop trains one run, or several runs on the same batches, with different step functions. Everything else
(metrics, validation, checkpoints) is done by hooks, each every N steps.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from jaxzoo.data.base import Batch

Fetch = Callable[[], Mapping[str, float]]
"""Fetches the metrics of an update from the device."""
Current = Callable[[], Any]
"""Returns the newest state."""


class NonFiniteError(ArithmeticError):
    """Loss, gradient, validation or parameters at `step` are not finite."""

    def __init__(self, what: str, step: int):
        super().__init__(f"{what} at step {step}")
        self.step = step


class BatchSource(Protocol):
    """A stream or an iterator of batches."""

    def __next__(self) -> Batch: ...


class StepFunction(Protocol):
    """Keeps and updates the states of some runs."""

    at_once: int
    """Largest number of batches per call."""

    def update(self, batches: Sequence[Batch], active: Sequence[int]) -> list[dict[int, Fetch]]:
        """Updates the active runs on each batch; returns their metrics by batch and run."""
        ...

    def state(self, i: int) -> Any: ...


class SingleRun:
    """Step function of one run: `update(state, batch) -> (state, metrics)`."""

    at_once: int = 1

    def __init__(self, update: Callable[[Any, Batch], tuple[Any, Any]], state: Any):
        self._update = update
        self._state = state

    def update(self, batches: Sequence[Batch], active: Sequence[int]) -> list[dict[int, Fetch]]:
        (batch,) = batches
        self._state, metrics = self._update(self._state, batch)
        return [{0: functools.partial(host_metrics, metrics)}]

    def state(self, i: int) -> Any:
        """The state after the last update."""
        return self._state


class StepInfo(NamedTuple):
    """Argument of hooks: a step of a run."""

    step: int
    """Number of updates."""
    metrics: Fetch | None
    """Metrics of the last update; None: before the first update of this process, and at the end."""
    state: Current | None
    """State after the step; None within a call that makes several steps."""
    is_end: bool = False
    """Whether no update follows."""


class Hook(NamedTuple):
    """A function that the loop calls every N steps."""

    function: Callable[[StepInfo], bool | None]
    """The function; its result True ends the run."""
    every: int = 1
    """Steps between two calls; 0: only after the last step."""
    needs_state: bool = True
    """Whether it reads the state; a call of the step function then ends at the next due step."""
    at_end: bool = False
    """Whether it is called once more at the end of the run."""


class TrainingRun:
    """A run in the loop.

    Attributes:
      step: number of updates.
      failure: error that ended the run.

    Args:
      hooks: hooks in the order of their calls.
      steps: number of updates at the end.
      step: number of updates at the beginning.
      is_stopped: called before each update; True ends the run.
    """

    def __init__(
        self, hooks: Sequence[Hook], *, steps: int, step: int = 0, is_stopped: Callable[[], bool] = lambda: False
    ):
        self.step: int = step
        self.failure: NonFiniteError | None = None
        self._hooks = hooks
        self._steps = steps
        self._is_stopped = is_stopped
        self._is_ended = False

    @property
    def goes_on(self) -> bool:
        """Whether there is a next update."""
        has_ended = self._is_ended or self.failure is not None
        return self.step < self._steps and not has_ended and not self._is_stopped()

    @property
    def n_until_due(self) -> int:
        """Number of updates until the next hook that reads the state."""
        periods = [hook.every for hook in self._hooks if hook.needs_state and hook.every > 0]
        return min(every - self.step % every for every in (self._steps, *periods))

    def begin(self, state: Current) -> None:
        """Calls the hooks that are due before the first update: a run may have been stopped before these calls."""
        self._call(StepInfo(self.step, None, state))

    def advance(self, metrics: Fetch, state: Current | None = None) -> None:
        """Calls the hooks that are due after an update."""
        self.step += 1
        self._call(StepInfo(self.step, metrics, state))

    def end(self, state: Current) -> None:
        """Calls the final hooks, unless the run has failed."""
        self._call(StepInfo(self.step, None, state, is_end=True))

    def _call(self, info: StepInfo) -> None:
        for hook in self._hooks:
            if self.failure is None and (hook.at_end if info.is_end else self._is_due(hook)):
                try:
                    self._is_ended |= bool(hook.function(info))
                except NonFiniteError as error:
                    self.failure = error

    def _is_due(self, hook: Hook) -> bool:
        return self.step == self._steps or (hook.every > 0 and self.step > 0 and self.step % hook.every == 0)


def run_loop(
    step_function: StepFunction, batches: BatchSource, runs: Sequence[TrainingRun]
) -> Iterator[list[TrainingRun]]:
    """Trains runs on the same batches; yields the runs that have just ended, before every update and at the end."""
    active = dict(enumerate(runs))
    states = [functools.partial(step_function.state, i) for i in active]
    for run, state in zip(runs, states, strict=True):
        run.begin(state)
    while active:
        ended = [i for i, run in active.items() if not run.goes_on]
        for i in ended:
            runs[i].end(states[i])
            del active[i]
        yield [runs[i] for i in ended]
        if not active:
            return
        n_steps = min(step_function.at_once, *(run.n_until_due for run in active.values()))
        *before, last = step_function.update([next(batches) for _ in range(n_steps)], list(active))
        for i, run in active.items():
            for metrics in before:
                run.advance(metrics[i])
            run.advance(last[i], states[i])


def host_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Fetches the metrics of a step from the device."""
    return {name: float(value) for name, value in jax.device_get(metrics).items()}
