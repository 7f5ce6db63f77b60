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
    """Starts or continues the tracker's run, named after the run directory, in the project "jaxzoo".

    Args:
      name: package of the tracker; its own environment variables (WANDB_PROJECT, WANDB_MODE ...) take precedence.
      run: run directory; wandb writes its files there.
      config: config of the run, as JSON.

    Raises:
      ValueError: the package is not installed.
    """
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"--tracker {name} needs the package {name}: pip install {name}") from error
    options = {"dir": str(run), "id": run.name} if name == "wandb" else {}
    project = os.environ.get("WANDB_PROJECT", "jaxzoo")
    package.init(project=project, name=run.name, config=config, resume="allow", **options)
    try:
        yield lambda step, metrics: package.log(metrics, step=step)
    finally:
        package.finish()
