"""The flags of `python -m jaxzoo.sweep`."""

import argparse

from jaxzoo.cli.flags import ArgumentParser
from jaxzoo.cli.sweep_cluster import add_cluster_flags

PROGRAM = "python -m jaxzoo.sweep"

DESCRIPTION = """Makes all runs of an experiment, several at once, then its figure, table and claims. A run that is
done is never made again; one that was stopped goes on where it was; what is added to the experiment is made
besides. Several such commands, on one machine or on many that share a file system, may work at one directory."""


def parser() -> argparse.ArgumentParser:
    """The flags of `python -m jaxzoo.sweep`."""
    flags = ArgumentParser(prog=PROGRAM, description=DESCRIPTION, allow_abbrev=False)
    flags.add_argument("--experiment", metavar="FILE", help="Python file with `experiment`, as in experiments/")
    flags.add_argument("--scale", metavar="NAME", default="laptop", help="its size: smoke, laptop, paper ..; laptop")
    flags.add_argument("--out", metavar="DIR", help="directory of the sweep; default: sweeps/<file>-<scale>")
    flags.add_argument(
        "--reuse",
        nargs="+",
        metavar="DIR",
        default=(),
        help="take over the runs that these sweeps, or what was reported of them, have in common with this one",
    )
    flags.add_argument("--dry-run", action="store_true", help="tell runs, programs, time and disk, and stop")
    flags.add_argument(
        "--parallel",
        choices=("auto", "vmap", "processes"),
        default="auto",
        help="runs that share a program: as one (vmap), or one after the other in a process; auto: vmap on GPU and TPU",
    )
    flags.add_argument("--workers", type=_positive, metavar="N", help="processes; default: one a core, or a GPU")
    add_cluster_flags(flags)
    flags.add_argument("--keep-checkpoints", action="store_true", help="keep the last checkpoint of every run")
    flags.add_argument(
        "--report",
        nargs="+",
        metavar="DIR",
        help="write figure, table, claims and page of these sweeps, finished or not; --out says where to",
    )
    return flags


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive number")
    return int(text)
