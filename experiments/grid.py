"""A grid of runs: some at once, each on a thread of its own; each kept when it is done, and never made again."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxzoo.cli.runner import use_compilation_cache
from jaxzoo.screen import Screen

if TYPE_CHECKING:
    from jaxzoo.config import ExperimentConfig
    from jaxzoo.train.session import Session
    from jaxzoo.train.state import TrainState

Row = dict[str, Any]
"""What a run was asked, its task, and beside it what came out."""


def one_thread_each() -> None:
    """Settles, before JAX starts, that this process and its workers compute on one thread of the CPU."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "NPROC": "1"}


def run_grid(
    tasks: Sequence[Row],
    train: Callable[[Row], Row],
    out: Path,
    *,
    workers: int,
    screen: Screen,
    in_short: Callable[[Row], str],
    keep: Callable[[Row], bool] = lambda row: True,
) -> list[Row]:
    """Makes the runs that `out` does not have.

    Args:
      tasks: what to ask of each run.
      train: makes a run; a function of a module, whose row holds the task.
      out: file of the rows, JSON; written after every run.
      workers: runs at once.
      screen: gets a line a run.
      in_short: that line, by the row.
      keep: which rows of the file still count; the others leave it.

    Returns:
      All rows of the file.
    """
    rows = [row for row in read_rows(out) if keep(row)]
    left = [task for task in tasks if not any(task.items() <= row.items() for row in rows)]
    screen.say(f"{len(rows)} runs are done, {len(left)} are left")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(train, task) for task in left]):
            rows.append(future.result())
            _write(rows, out)
            screen.say(in_short(rows[-1]))
    return rows


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    return json.loads(path.read_text())["runs"] if path.exists() else []


def _write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps({"runs": sorted(rows, key=str)}, indent=1) + "\n")
    os.replace(unfinished, path)


class Fitted(NamedTuple):
    """A run at its end."""

    session: "Session"
    state: "TrainState"
    first_loss: float
    last_loss: float | None
    """None: it diverged."""

    def metrics(self) -> dict[str, float]:
        """Those of `Session.evaluate`."""
        import jax

        with jax.set_mesh(self.session.mesh):
            return self.session.evaluate(self.state.variables)


def fit(config: "ExperimentConfig") -> Fitted:
    """Trains to the end, without a run directory."""
    import jax

    from jaxzoo.train.session import Session

    use_compilation_cache()
    session = Session(config)
    losses = []
    with jax.set_mesh(session.mesh):
        state, stream = session.init_state(), session.dataset.train()
        for _ in range(config.train.steps):
            state, metrics = session.update(state, next(stream))
            losses.append(metrics["loss"])
    first, last = float(losses[0]), float(losses[-1])
    return Fitted(session, state, first, last if math.isfinite(last) else None)
