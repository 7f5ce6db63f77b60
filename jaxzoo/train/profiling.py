"""Traces of training steps, for Perfetto."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

Update = Callable[[Any, Any], tuple[Any, Any]]


def parse_steps(text: str, n_steps: int) -> range:
    """Parses `10:13` as steps 10, 11 and 12; raises `ValueError` unless they are among the steps 1 to `n_steps`."""
    begin, _, end = text.partition(":")
    if not (begin.isascii() and begin.isdigit() and end.isascii() and end.isdigit()):
        raise ValueError(f"--profile {text} must be START:STOP, such as 10:13 for the steps 10, 11 and 12")
    steps = range(int(begin), int(end))
    if not 1 <= steps.start < steps.stop <= n_steps + 1:
        raise ValueError(f"--profile {text} must name steps from 1 to {n_steps}, with START before STOP")
    return steps


def check_ahead(steps: range | None, step: int) -> None:
    """Raises `ValueError` if a run that is resumed after `step` has already taken the first of the steps."""
    if steps and steps.start <= step:
        raise ValueError(f"--profile {steps.start}:{steps.stop} must name steps after {step}, where the run continues")


class TracedUpdate:
    """Update function of a run that traces some of its steps.

    Args:
      update: `(state, batch) -> (state, metrics)`.
      steps: steps to trace, with everything between them.
      directory: where the trace is written.
      begin: step after which the run begins.
      pause: context manager that stops the run's clock.
      say: called with the path of the trace.
    """

    def __init__(
        self,
        update: Update,
        steps: range,
        directory: Path,
        *,
        begin: int,
        pause: Callable[[], contextlib.AbstractContextManager[None]],
        say: Callable[[str], None],
    ):
        self._update = update
        self._steps = steps
        self._directory = directory
        self._step = begin
        self._pause = pause
        self._say = say
        self._trace = contextlib.ExitStack()

    def __call__(self, state: Any, batch: Any) -> tuple[Any, Any]:
        self._step += 1
        if self._step not in self._steps:
            return self._update(state, batch)
        if self._step == self._steps.start:
            self._trace.callback(self._tell)
            self._trace.enter_context(jax.profiler.trace(str(self._directory), create_perfetto_trace=True))
        with jax.profiler.StepTraceAnnotation("train", step_num=self._step):
            result = self._update(state, batch)
        if self._step == self._steps[-1]:
            jax.block_until_ready(result)
            self.close()
        return result

    def close(self) -> None:
        """Ends the trace, also of a run that ends before the last traced step."""
        with self._pause():
            self._trace.close()

    def _tell(self) -> None:
        file = max(self._directory.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
        last = min(self._step, self._steps[-1])
        self._say(f"trace of steps {self._steps.start} to {last}: {file}; open it at https://ui.perfetto.dev")
