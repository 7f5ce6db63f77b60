"""Options of `jaxzoo sweep`, and the sweep that they name."""

import ast
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import UsageError, flag, parse_flags
from jaxzoo.cli.user_files import import_file
from jaxzoo.config.checked import Checked, PositiveInt, nearest

if TYPE_CHECKING:
    from jaxzoo.sweep.sweep import Sweep


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepCommand(Checked):
    """Trains all runs of an experiment, several at once, then makes its figure, table and claims. A finished run is
    kept; a stopped one continues at its newest checkpoint; runs that are added to the experiment later are trained too.
    Several such commands, on one machine or on many that share a file system, may work in one directory."""

    experiment: Annotated[str | None, flag("FILE")] = None
    """Python file with `experiment`; or a packaged one by name, such as zoology_figure2."""
    scale: Annotated[str, flag("NAME")] = "laptop"
    """Size of the experiment: smoke, laptop, ..."""
    out: Annotated[Path | None, flag("DIR")] = None
    """Directory of the sweep; default: sweeps/<file>-<scale>."""
    reuse: Annotated[tuple[Path, ...], flag("DIR")] = ()
    """Copy results of the same runs from these sweeps or kept reports."""
    dry_run: bool = False
    """Print runs, programs, time and disk, and stop."""
    parallel: Literal["auto", "vmap", "processes"] = "auto"
    """How to train runs that share a program: vmapped, or one after the other; auto: vmap on GPU and TPU."""
    workers: Annotated[PositiveInt | None, flag("N")] = None
    """Processes; default: one per core, or per GPU."""
    cluster: Annotated[str | None, flag("NAME")] = None
    """Run workers as jobs of submitit: slurm, or local (processes of this machine)."""
    cluster_options: Annotated[tuple[str, ...], flag("NAME=VALUE")] = ()
    """Options of submitit, such as partition=gpu gpus_per_node=1 timeout_min=600; Python values or words."""
    keep_checkpoints: bool = False
    """Keep the last checkpoint of every run."""
    report: Annotated[tuple[Path, ...], flag("DIR")] = ()
    """Write figure, table and claims of these sweeps of the experiment again, finished or not."""

    def __post_init__(self) -> None:
        self.of_cluster()
        if self.cluster is None and self.cluster_options:
            raise UsageError("--cluster-options needs --cluster NAME, such as --cluster slurm")
        if self.cluster is not None and self.workers is None:
            raise UsageError("--cluster needs --workers N: how many jobs work at once")

    def of_cluster(self) -> dict[str, Any]:
        """Options of submitit: Python values, such as `gpus_per_node=1`, or words, such as `partition=gpu`."""
        options: dict[str, Any] = {}
        for text in self.cluster_options:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise UsageError(f"--cluster-options: {text!r} must be NAME=VALUE, such as timeout_min=600")
            try:
                options[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                options[name] = value
        return options

    @property
    def file(self) -> Path:
        if self.experiment is None:
            example = "--experiment experiments/zoology_figure2.py"
            raise UsageError(f"--experiment FILE is required, such as {example}; see --help")
        return Path(packaged.find(self.experiment, "experiments"))


def parse(words: Sequence[str]) -> SweepCommand:
    """Parses a command line."""
    if list(words).count("--cluster-options") > 1:
        raise UsageError("--cluster-options is given twice; give all options after one")
    return parse_flags(SweepCommand, words, prog="jaxzoo sweep")


def open_sweep(file: Path, scale: str, out: Path, *, checked: bool = False) -> "Sweep":
    """Opens the `experiment` of a Python file at a scale; `checked`: also tests its claims on made-up rows.

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
        n_specs = len(sweep.specs)
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    except Exception as error:  # of the user's own function
        raise UsageError(f"{file}: scale {scale}: {type(error).__name__}: {error}") from error
    if not n_specs:
        raise UsageError(f"{file}: scale {scale} has no points")
    if checked and (found := sweep.experiment.complaints(sweep.scale)):
        raise UsageError(f"{file}: {found[0]}")
    return sweep
