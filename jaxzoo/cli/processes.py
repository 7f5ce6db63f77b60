"""The options of a command that several processes run together."""

import argparse
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import quieten, say
from jaxzoo.screen import hush


class Processes(NamedTuple):
    """Options about the processes of a run."""

    coordinator: str | None = None
    """HOST:PORT of process 0."""
    n_processes: int | None = None
    """How many there are."""
    process: int | None = None
    """Which this one is."""
    detect: bool = False
    """Ask the cluster for the three."""
    wait: int = 300
    """Seconds for all processes to come."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to those of a command."""
    group = parser.add_argument_group("several processes, each started with the same command")
    group.add_argument(
        "--distributed", action="store_true", help="learn from Slurm, Open MPI, Kubernetes or a Cloud TPU"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 runs, and a free port there")
    group.add_argument("--processes", metavar="N", type=int, help="how many processes there are")
    group.add_argument("--process", metavar="I", type=int, help="which one this is, from 0 on")
    wait = "how long to wait until all processes have come; default: %(default)s"
    group.add_argument("--wait", metavar="SECONDS", type=int, default=Processes().wait, help=wait)


def read_options(options: argparse.Namespace) -> Processes:
    """The options that `add_options` has added.

    Raises:
      UsageError: they do not fit together.
    """
    found = Processes(options.coordinator, options.processes, options.process, options.distributed, options.wait)
    flags = {"--coordinator": found.coordinator, "--processes": found.n_processes, "--process": found.process}
    given = [flag for flag, value in flags.items() if value is not None]
    if found.wait < 1:
        raise UsageError(f"--wait {found.wait} must be positive")
    if found.detect and given:
        raise UsageError(f"--distributed and {given[0]} exclude each other: it learns from the cluster what that says")
    if given and len(given) < 3:
        missing = next(flag for flag in flags if flag not in given)
        raise UsageError(f"{missing} is missing: --coordinator, --processes and --process belong together")
    if found.n_processes is not None and found.process is not None:
        if found.n_processes < 1:
            raise UsageError(f"--processes {found.n_processes} must be positive")
        if not 0 <= found.process < found.n_processes:
            last = found.n_processes - 1
            raise UsageError(f"--process {found.process} must be in [0, {last}], for --processes {found.n_processes}")
    if found.coordinator is not None:
        host, _, port = found.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"--coordinator {found.coordinator!r} must be HOST:PORT, such as node-0:12321")
    return found


@contextlib.contextmanager
def part_of_run(processes: Processes) -> Iterator[None]:
    """Inside the block this process is one of those of the run; only process 0 says what goes wrong there.

    Args:
      processes: of the run.

    Raises:
      ValueError: the processes cannot meet.
    """
    if processes.coordinator is None and not processes.detect:
        yield
        return
    from jaxzoo.distributed.agreement import is_leader
    from jaxzoo.distributed.joining import ProcessPlace, joined

    place = None
    if processes.coordinator is not None and processes.n_processes is not None and processes.process is not None:
        place = ProcessPlace(processes.coordinator, processes.n_processes, processes.process)
    quieten()
    with joined(place, wait=processes.wait, say=say):
        if not is_leader():
            hush()
        yield
