"""Flags of `python -m jaxzoo.sweep` for a cluster: `--cluster slurm --workers 8 --cluster-options partition=gpu`."""

import argparse
import ast
from typing import TYPE_CHECKING, Any

from jaxzoo.cli.flags import UsageError

if TYPE_CHECKING:
    from jaxzoo.sweep.cluster import Cluster
    from jaxzoo.sweep.sweep import Sweep


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Declares them."""
    parser.add_argument(
        "--cluster", metavar="NAME", help="workers are jobs, by submitit: slurm; local: processes of this machine"
    )
    parser.add_argument(
        "--cluster-options",
        metavar="NAME=VALUE",
        nargs="+",
        type=_option,
        action="extend",
        default=[],
        help="of submitit, such as partition=gpu gpus_per_node=1 timeout_min=600; values as in Python, or words",
    )


def cluster_of(options: argparse.Namespace, sweep: "Sweep") -> "Cluster | None":
    """What the flags ask for; None: workers of this machine.

    Raises:
      UsageError: a flag that needs another.
      ValueError: submitit is missing or refuses something.
    """
    if options.cluster is None:
        if options.cluster_options:
            raise UsageError("--cluster-options needs --cluster NAME, such as --cluster slurm")
        return None
    if options.workers is None:
        raise UsageError("--cluster needs --workers N: how many jobs work at once")

    from jaxzoo.sweep.cluster import Cluster

    folder = sweep.directory.workers / "jobs"
    return Cluster(options.cluster, dict(options.cluster_options), folder, f"jaxzoo-{sweep.directory.path.name}")


def _option(text: str) -> tuple[str, Any]:
    """`gpus_per_node=1` is a number, `partition=gpu` a word, `setup=["module load cuda"]` a list."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE, such as timeout_min=600")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
