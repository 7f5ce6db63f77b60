"""Workers as processes of this machine, one per core or per accelerator; `cluster.py` has jobs of a cluster."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple


class Device(NamedTuple):
    """The devices that JAX finds on this machine."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    number: int
    """Number of devices."""


def find_device() -> Device:
    """Asks JAX in a process of its own, because JAX keeps the accelerator that it has found.

    Raises:
      OSError: JAX does not start.
    """
    code = "import json, jax; print(json.dumps([jax.default_backend(), jax.local_device_count()]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"JAX does not start: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return Device(*json.loads(done.stdout.splitlines()[-1]))


def as_one_program(parallel: str, platform: str) -> bool:
    """Whether runs that share a program are vmapped: with `vmap`, and on GPU and TPU with `auto`."""
    return parallel == "vmap" or (parallel == "auto" and platform != "cpu")


def worker_name(number: int) -> str:
    """A name that no other worker has, on this machine or another."""
    return f"{os.getpid()}-{number}-{uuid.uuid4().hex[:6]}"


class LocalWorker(NamedTuple):
    """A worker process (a `Worker`)."""

    name: str
    process: "Future[str | None]"
    """Gives the error message when the process has ended."""

    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.done()

    def error_message(self) -> str | None:
        """The last line that it printed, or the signal that killed it; None: it did not fail."""
        return self.process.result()


class LocalWorkers:
    """Processes of this machine (`Workers`), which also stop when this process is killed.

    Args:
      command: command line of a worker without its name.
      count: workers at once.
      device: device of the machine.
      logs: folder for the output of the workers.
    """

    def __init__(self, command: Sequence[str], count: int, device: Device, logs: Path):
        self._command, self._device, self._logs = command, device, logs
        self._pool = ThreadPoolExecutor(count)
        self._started: list[Future[str | None]] = []
        # Standard input of the workers. It ends when we close the other side, or when we are gone.
        self._stdin, self._stop = os.pipe()

    def start(self, numbers: Sequence[int]) -> list[LocalWorker]:
        """Starts the workers of these numbers."""
        names = [worker_name(number) for number in numbers]
        found = [self._pool.submit(self._run, number, name) for number, name in zip(numbers, names, strict=True)]
        self._started += found
        return [LocalWorker(name, process) for name, process in zip(names, found, strict=True)]

    def stop(self, *, finished: bool) -> None:
        """Lets all workers save and end, and waits for them."""
        os.close(self._stop)
        wait(self._started)
        self._pool.shutdown()
        os.close(self._stdin)

    def _run(self, number: int, name: str) -> str | None:
        """Runs a worker; returns its error message."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as stream:
            status = subprocess.run(
                [*self._command, "--name", name],
                stdin=self._stdin,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **environment(number, self._device)},
                start_new_session=True,  # Ctrl-C reaches this process only, which then stops the workers
            ).returncode
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = log.read_text(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"exit status {status}") if status else None


def environment(number: int, device: Device) -> dict[str, str]:
    """One thread per worker on a CPU; one GPU per worker."""
    if device.platform == "cpu":
        return {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
    return {"CUDA_VISIBLE_DEVICES": _visible(number, device)} if device.platform == "gpu" else {}


def _visible(number: int, device: Device) -> str:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(i) for i in range(device.number)]
    return names[number % len(names)]
