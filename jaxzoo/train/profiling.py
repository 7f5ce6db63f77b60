"""A trace of some steps, which Perfetto opens."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax


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
    """Raises `ValueError` for steps of which a run that is resumed after `step` has already taken the first."""
    if steps and steps.start <= step:
        raise ValueError(
            f"--profile {steps.start}:{steps.stop} must name steps after {step}, from where the run goes on"
        )


StepTracer = Callable[[int, Callable[[], Any]], contextlib.AbstractContextManager[None]]
"""Around the update that leads to a step; the second argument gives what it computes, for which the trace waits."""


@contextlib.contextmanager
def profiler(
    steps: range | None,
    directory: Path,
    say: Callable[[str], None],
    pause: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[StepTracer]:
    """Traces some steps of a run, with all that lies between them; gives what is to stand around each step.

    `say` is told of the file in the directory, which is made for it; `pause` makes time that is not training.
    """
    wanted = steps or range(0)
    traced = []
    trace = contextlib.ExitStack()

    def finish() -> None:
        with pause():
            trace.close()
        file = max(directory.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
        say(f"trace of steps {traced[0]} to {traced[-1]}: {file}; open it at https://ui.perfetto.dev")
        traced.clear()

    @contextlib.contextmanager
    def around(step: int, state: Callable[[], Any]) -> Iterator[None]:
        if step not in wanted:
            yield
            return
        if step == wanted.start:
            trace.enter_context(jax.profiler.trace(str(directory), create_perfetto_trace=True))
        traced.append(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == wanted[-1]:
            jax.block_until_ready(state())
            finish()

    try:
        yield around
    finally:
        if traced:  # the run ends before the last of the steps
            finish()
