"""Start of a run of several processes: they meet at the coordinator."""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from jaxzoo.parallel.agreement import is_one_of_many

HEARTBEAT_SECONDS = 10
"""Time without a heartbeat after which JAX's coordinator takes a process as lost, and all others end."""

SHUTDOWN_SECONDS = 60
"""Time for all processes to leave, when the run is over."""


class ProcessPlace(NamedTuple):
    """Position of a process among those of its run."""

    coordinator: str
    """HOST:PORT at which process 0 waits for the others."""
    n_processes: int
    process: int


@contextlib.contextmanager
def joined(place: ProcessPlace | None, *, wait: int, say: Callable[[str], None]) -> Iterator[None]:
    """Context manager: joins this process to the multi-process run, before JAX starts its devices.

    Args:
      place: this process; None: detected from Slurm, Open MPI, Kubernetes or a Cloud TPU.
      wait: seconds to wait for all processes; after them the process prints a line and ends with status 2.

    Raises:
      ValueError: there is no cluster, or process 0 cannot listen.
    """
    if not place or place.n_processes > 1:
        _meet(place, wait, say)
    if not is_one_of_many():
        yield
        return
    yield
    jax.distributed.shutdown()


def _meet(place: ProcessPlace | None, wait: int, say: Callable[[str], None]) -> None:
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)  # it would replace our handler of SIGTERM
    if place and place.process == 0:
        port = int(place.coordinator.rpartition(":")[2])
        try:  # another program may hold the port: JAX would crash
            with socket.socket(socket.AF_INET) as probe:
                if sys.platform != "win32":
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            raise ValueError(f"--coordinator: port {port}: {error.strerror}; choose another port") from error
    who = f"{place.n_processes} processes at {place.coordinator}" if place else "processes of this cluster"
    late = f"error: not all {who} have come within {wait} s; is each one started, and the address right?"
    with _limit(wait, late, say):
        try:
            jax.distributed.initialize(
                *(place or (None, None, None)),
                # Otherwise JAX would give a process on Slurm only the device with its local number.
                cluster_detection_method="deactivate" if place else None,
                initialization_timeout=2 * wait,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            )
        except (ValueError, TypeError, RuntimeError) as error:  # "coordinator_address should be defined."
            if place:
                raise ValueError(f"the processes cannot meet at {place.coordinator}: {error}") from error
            known = "Slurm, Open MPI, Kubernetes (with the package kubernetes), a Cloud TPU"
            raise ValueError(f"--distributed finds none of {known} ({error}); use --coordinator instead") from error


@contextlib.contextmanager
def _limit(seconds: float, line: str, say: Callable[[str], None]) -> Iterator[None]:
    """Ends the process with one line if the block takes longer; JAX would abort it with a stack trace."""

    def end() -> None:
        say(line)
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
