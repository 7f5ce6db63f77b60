"""Experiment trackers: the metrics of a run also go to wandb or trackio, whose interfaces agree."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

TrackerName = Literal["wandb", "trackio"]
Track = Callable[[int, dict[str, float]], None]
"""Sends the metrics of a step."""


@contextlib.contextmanager
def open_tracker(name: TrackerName, run: Path, config: Any) -> Iterator[Track]:
    """Starts a run of the tracker, named after the run directory; a resumed run starts another.

    The project is "jaxzoo", or $WANDB_PROJECT.

    Args:
      name: package of the tracker; it reads its own environment variables (WANDB_MODE, WANDB_DIR ...).
      run: run directory; nothing is written there, since a run directory holds the files of the run alone.
      config: config of the run, as JSON.

    Raises:
      ValueError: the package is not installed.
    """
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"--tracker {name} needs the package {name}: pip install {name}") from error
    package.init(project=os.environ.get("WANDB_PROJECT", "jaxzoo"), name=run.name, config=config)
    try:
        yield lambda step, metrics: package.log(metrics, step=step)
    finally:
        package.finish()
