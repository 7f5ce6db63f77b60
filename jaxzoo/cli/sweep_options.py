"""Flags of `python -m jaxzoo.sweep`."""

import argparse
import ast
from collections.abc import Sequence
from typing import Any

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import ArgumentParser, UsageError

PROGRAM = "python -m jaxzoo.sweep"

DESCRIPTION = """Trains all runs of an experiment, several at once, then makes its figure, table and claims. A finished
run is kept; a stopped one continues at its newest checkpoint; runs that are added to the experiment later are trained
too. Several such commands, on one machine or on many that share a file system, may work in one directory."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line.

    Raises:
      UsageError: a mistake, or a flag that needs another.
    """
    flags = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    experiment = "Python file with `experiment`; or a packaged one by name, such as zoology_figure2"
    flags.add_argument("--experiment", metavar="FILE", type=packaged.find_experiment, help=experiment)
    flags.add_argument(
        "--scale", metavar="NAME", default="laptop", help="its size: smoke, laptop, ...; default: laptop"
    )
    flags.add_argument("--out", metavar="DIR", help="directory of the sweep; default: sweeps/<file>-<scale>")
    flags.add_argument(
        "--reuse",
        nargs="+",
        metavar="DIR",
        default=(),
        help="copy the results of runs that this sweep has in common with these sweeps or kept reports",
    )
    flags.add_argument("--dry-run", action="store_true", help="print runs, programs, time and disk, and stop")
    flags.add_argument(
        "--parallel",
        choices=("auto", "vmap", "processes"),
        default="auto",
        help="how to train runs that share a program: vmapped, or one after the other; auto: vmap on GPU and TPU",
    )
    flags.add_argument("--workers", type=_positive, metavar="N", help="processes; default: one per core, or per GPU")
    flags.add_argument(
        "--cluster", metavar="NAME", help="run workers as jobs of submitit: slurm, or local (processes of this machine)"
    )
    flags.add_argument(
        "--cluster-options",
        metavar="NAME=VALUE",
        nargs="+",
        type=_option,
        action="extend",
        default=[],
        help="options of submitit, such as partition=gpu gpus_per_node=1 timeout_min=600; Python values or words",
    )
    flags.add_argument("--keep-checkpoints", action="store_true", help="keep the last checkpoint of every run")
    flags.add_argument(
        "--report",
        nargs="+",
        metavar="DIR",
        help="write one page about these sweeps as they were last reported, to --out; with --experiment FILE, first "
        "write their figure, table and claims, finished or not",
    )
    options = flags.parse_args(argv)
    if options.cluster is None and options.cluster_options:
        raise UsageError("--cluster-options needs --cluster NAME, such as --cluster slurm")
    if options.cluster is not None and options.workers is None:
        raise UsageError("--cluster needs --workers N: how many jobs work at once")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive number")
    return int(text)


def _option(text: str) -> tuple[str, Any]:
    """`gpus_per_node=1` is a number, `partition=gpu` a word, `setup=["module load cuda"]` a list."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE, such as timeout_min=600")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
