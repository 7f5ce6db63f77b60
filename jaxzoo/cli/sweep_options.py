"""Flags of `python -m jaxzoo.sweep`, and the sweep that they name."""

import argparse
import ast
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import ArgumentParser, UsageError, positive
from jaxzoo.cli.user_files import import_file
from jaxzoo.config.checked import nearest

if TYPE_CHECKING:
    from jaxzoo.sweep.sweep import Sweep

PROGRAM = "python -m jaxzoo.sweep"

DESCRIPTION = """Trains all runs of an experiment, several at once, then makes its figure, table and claims. A finished
run is kept; a stopped one continues at its newest checkpoint; runs that are added to the experiment later are trained
too. Several such commands, on one machine or on many that share a file system, may work in one directory."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line. Raises `UsageError`."""
    parser = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    experiment = "Python file with `experiment`; or a packaged one by name, such as zoology_figure2"
    add("--experiment", metavar="FILE", type=partial(packaged.find, kind="experiments"), help=experiment)
    add("--scale", metavar="NAME", default="laptop", help="its size: smoke, laptop, ...; default: laptop")
    add("--out", metavar="DIR", help="directory of the sweep; default: sweeps/<file>-<scale>")
    reuse = "copy the results of runs that this sweep has in common with these sweeps or kept reports"
    add("--reuse", nargs="+", metavar="DIR", default=(), help=reuse)
    add("--dry-run", action="store_true", help="print runs, programs, time and disk, and stop")
    parallel = "how to train runs that share a program: vmapped, or one after the other; auto: vmap on GPU and TPU"
    add("--parallel", choices=("auto", "vmap", "processes"), default="auto", help=parallel)
    add("--workers", type=positive, metavar="N", help="processes; default: one per core, or per GPU")
    cluster = "run workers as jobs of submitit: slurm, or local (processes of this machine)"
    add("--cluster", metavar="NAME", help=cluster)
    given = "options of submitit, such as partition=gpu gpus_per_node=1 timeout_min=600; Python values or words"
    many = {"nargs": "+", "action": "extend", "default": []}
    add("--cluster-options", metavar="NAME=VALUE", type=_option, help=given, **many)
    add("--keep-checkpoints", action="store_true", help="keep the last checkpoint of every run")
    report = "write figure, table and claims of these sweeps of the experiment again, finished or not"
    add("--report", nargs="+", metavar="DIR", help=report)
    options = parser.parse_args(argv)
    if options.cluster is None and options.cluster_options:
        raise UsageError("--cluster-options needs --cluster NAME, such as --cluster slurm")
    if options.cluster is not None and options.workers is None:
        raise UsageError("--cluster needs --workers N: how many jobs work at once")
    return options


def _option(text: str) -> tuple[str, Any]:
    """`gpus_per_node=1` is a number, `partition=gpu` a word, `setup=["module load cuda"]` a list."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r} must be NAME=VALUE, such as timeout_min=600")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def open_sweep(file: Path, scale: str, out: Path, *, checked: bool = False) -> "Sweep":
    """Opens the `experiment` of a Python file at a scale, with all its runs read; `checked`: also its claims are.

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
    for complaint in sweep.experiment.complaints(sweep.scale) if checked else ():
        raise UsageError(f"{file}: {complaint}")
    return sweep
