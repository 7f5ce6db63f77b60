"""Reads the experiment file of a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.config_file import import_file
from jaxzoo.cli.flags import UsageError
from jaxzoo.config_io import nearest

if TYPE_CHECKING:
    from jaxzoo.sweep.sweep import Sweep


def open_sweep(file: Path, scale: str, out: Path, *, checked: bool = False) -> "Sweep":
    """Opens the `experiment` of a Python file at a scale, with all its runs read.

    Args:
      file: the Python file.
      scale: name of the scale.
      out: directory of the sweep.
      checked: whether its claims are checked, on made-up rows.

    Raises:
      UsageError: the file fails, defines no experiment or no such scale, or a point has no valid config.
    """
    module = import_file(file, "experiments")

    from jaxzoo.sweep.directory import SweepDirectory
    from jaxzoo.sweep.experiment import Experiment, Scale
    from jaxzoo.sweep.sweep import Sweep

    experiment = getattr(module, "experiment", None)
    if not isinstance(experiment, Experiment):
        raise UsageError(f"experiment file {file} must define `experiment`, an Experiment")
    if scale not in experiment.scales:
        hint = nearest(scale, experiment.scales) or f"; there are {', '.join(experiment.scales)}"
        raise UsageError(f"--scale: {file} has no scale {scale!r}{hint}")
    try:
        made = experiment.scales[scale]()
        if not isinstance(made, Scale):
            raise ValueError(f"scale {scale} gives {made!r}; it must be a Scale")
        sweep = Sweep(experiment, made, SweepDirectory(out.absolute()))
        n_tasks = len(sweep.tasks)
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    except Exception as error:  # of the user's own function
        raise UsageError(f"{file}: scale {scale}: {type(error).__name__}: {error}") from error
    if not n_tasks:
        raise UsageError(f"{file}: scale {scale} has no points")
    for complaint in sweep.experiment.complaints(sweep.scale) if checked else ():
        raise UsageError(f"{file}: {complaint}")
    return sweep
