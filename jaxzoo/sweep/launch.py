"""Starts workers on this machine: processes that make runs, one a core or one an accelerator; `cluster.py` has jobs."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

GRACE_SECONDS = 120.0
"""For workers that were told to stop, to save what they have."""


class Device(NamedTuple):
    """What JAX computes on here."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    number: int
    """How many."""


def find_device() -> Device:
    """Asks JAX in a process of its own, since to ask is to take the accelerator.

    Raises:
      OSError: JAX does not start.
    """
    code = "import json, jax; print(json.dumps([jax.default_backend(), jax.local_device_count()]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"JAX does not start: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return Device(*json.loads(done.stdout.splitlines()[-1]))


def as_one_program(parallel: str, platform: str) -> bool:
    """Whether runs that share a program are one program: where told so (`vmap`), and on GPU and TPU by themselves."""
    return parallel == "vmap" or (parallel == "auto" and platform != "cpu")


class Worker(Protocol):
    """A worker that was started."""

    name: str
    """As in the queue."""

    def ended(self) -> bool:
        """Whether it runs no more."""
        ...

    def last_words(self) -> str | None:
        """What it said when it failed, one line; None: it did not fail."""
        ...

    def stop(self) -> None:
        """Tells it to save and end."""
        ...

    def kill(self) -> None:
        """Ends it at once."""
        ...


def worker_name(number: int) -> str:
    """A name that no other worker has, here or on another machine."""
    return f"{os.getpid()}-{number}-{uuid.uuid4().hex[:6]}"


class LocalWorker:
    """A process of this machine, which stops when the process that started it is gone.

    Args:
      command: its command line but for its name.
      number: of the worker, from 0 on.
      device: what it computes on.
      logs: folder for what it says.
    """

    def __init__(self, command: Sequence[str], number: int, device: Device, logs: Path):
        self.name = worker_name(number)
        self._log = logs / f"{self.name}.log"
        stream: IO[bytes] = self._log.open("wb")
        self._process = subprocess.Popen(
            [*command, "--name", self.name],
            stdin=subprocess.PIPE,  # closed when we are gone
            stdout=stream,
            stderr=stream,
            env={**os.environ, **environment(number, device)},
            start_new_session=True,  # Ctrl-C is for us: we tell the workers
        )
        stream.close()

    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def last_words(self) -> str | None:
        """The last line that it printed, or the signal that killed it; None: it did not fail."""
        status = self._process.returncode
        if not status:
            return None
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {status}"

    def stop(self) -> None:
        """Tells it to save and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()


def environment(number: int, device: Device) -> dict[str, str]:
    """One thread a worker on a CPU; one GPU a worker."""
    if device.platform == "cpu":
        return {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
    return {"CUDA_VISIBLE_DEVICES": _visible(number, device)} if device.platform == "gpu" else {}


def _visible(number: int, device: Device) -> str:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(i) for i in range(device.number)]
    return names[number % len(names)]


def stop_all(workers: Sequence[Any], grace: float = GRACE_SECONDS) -> None:
    """Tells workers to stop, waits, and ends those at once that do not."""
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and not all(worker.ended() for worker in workers):
        time.sleep(0.1)
    for worker in workers:
        if not worker.ended():
            worker.kill()
