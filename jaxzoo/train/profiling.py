"""A trace of some steps, which Perfetto opens."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax

ANNOTATION = "train"
"""Name of a step in the trace."""


def parse_steps(text: str, n_steps: int) -> range:
    """`10:13` -> steps 10, 11 and 12; the first update is step 1.

    Raises:
      ValueError: no such steps among `n_steps`.
    """
    begin, _, end = text.partition(":")
    if not (begin.isascii() and begin.isdigit() and end.isascii() and end.isdigit()):
        raise ValueError(f"--profile {text} must be START:STOP, such as 10:13 for the steps 10, 11 and 12")
    steps = range(int(begin), int(end))
    if not 1 <= steps.start < steps.stop <= n_steps + 1:
        raise ValueError(f"--profile {text} must name steps from 1 to {n_steps}, with START before STOP")
    return steps


def check_ahead(steps: range | None, step: int) -> None:
    """Refuses to trace steps that a resumed run has already taken.

    Raises:
      ValueError: the first of the steps is not after `step`.
    """
    if steps and steps.start <= step:
        raise ValueError(
            f"--profile {steps.start}:{steps.stop} must name steps after {step}, from where the run goes on"
        )


class Profiler:
    """Traces some steps of a run, with all that lies between them.

    Args:
      steps: which; None: none.
      directory: where to, made for it.
      say: told of the file.
      pause: makes time that is not training.
    """

    def __init__(
        self,
        steps: range | None,
        directory: Path,
        say: Callable[[str], None],
        pause: Callable[[], contextlib.AbstractContextManager[None]],
    ):
        self._steps, self._directory, self._say, self._pause = steps or range(0), directory, say, pause
        self._trace = contextlib.ExitStack()
        self._traced: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._traced:  # the run ends before the last of the steps
            self._finish()

    @contextlib.contextmanager
    def step(self, step: int, state: Callable[[], Any]) -> Iterator[None]:
        """Around the update that leads to `step`; `state` gives what it computes, for which the trace waits."""
        if step not in self._steps:
            yield
            return
        if step == self._steps.start:
            self._trace.enter_context(jax.profiler.trace(str(self._directory), create_perfetto_trace=True))
        self._traced.append(step)
        with jax.profiler.StepTraceAnnotation(ANNOTATION, step_num=step):
            yield
        if step == self._steps[-1]:
            jax.block_until_ready(state())
            self._finish()

    def _finish(self) -> None:
        with self._pause():
            self._trace.close()
        file = max(self._directory.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
        self._say(f"trace of steps {self._traced[0]} to {self._traced[-1]}: {file}; open it at https://ui.perfetto.dev")
        self._traced = []
