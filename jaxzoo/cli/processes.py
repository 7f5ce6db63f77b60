"""Options of a command that several processes run together."""

import argparse
import contextlib
from collections.abc import Iterator

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import quieten, say
from jaxzoo.screen import mute


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to those of a command."""
    group = parser.add_argument_group("several processes, each started with the same command")
    group.add_argument(
        "--distributed", action="store_true", help="take all of this from Slurm, Open MPI, Kubernetes or a Cloud TPU"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="host of process 0, and a free port there")
    group.add_argument("--processes", metavar="N", type=int, help="number of processes")
    group.add_argument("--process", metavar="I", type=int, help="number of this process, from 0")
    wait = "how long to wait until all processes have come; default: %(default)s"
    group.add_argument("--wait", metavar="SECONDS", type=int, default=300, help=wait)


def check_options(options: argparse.Namespace) -> None:
    """Checks the options that `add_options` has added.

    Raises:
      UsageError: they do not fit together.
    """
    flags = {"--coordinator": options.coordinator, "--processes": options.processes, "--process": options.process}
    given = [flag for flag, value in flags.items() if value is not None]
    if options.wait < 1:
        raise UsageError(f"--wait {options.wait} must be positive")
    if options.distributed and given:
        raise UsageError(f"--distributed and {given[0]} exclude each other: it learns from the cluster what that says")
    if not given:
        return
    if len(given) < 3:
        missing = next(flag for flag in flags if flag not in given)
        raise UsageError(f"{missing} is missing: --coordinator, --processes and --process belong together")
    if options.processes < 1:
        raise UsageError(f"--processes {options.processes} must be positive")
    if not 0 <= options.process < options.processes:
        rule = f"must be in [0, {options.processes - 1}], for --processes {options.processes}"
        raise UsageError(f"--process {options.process} {rule}")
    host, _, port = options.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--coordinator {options.coordinator!r} must be HOST:PORT, such as node-0:12321")


@contextlib.contextmanager
def part_of_run(options: argparse.Namespace) -> Iterator[None]:
    """Inside the block this process is one of those of the run; only process 0 prints errors there.

    Args:
      options: checked ones.

    Raises:
      ValueError: the processes cannot meet.
    """
    if options.coordinator is None and not options.distributed:
        yield
        return
    from jaxzoo.distributed.agreement import is_leader
    from jaxzoo.distributed.joining import ProcessPlace, joined

    place = None
    if options.coordinator is not None:
        place = ProcessPlace(options.coordinator, options.processes, options.process)
    quieten()
    with joined(place, wait=options.wait, say=say):
        if not is_leader():
            mute()
        yield
