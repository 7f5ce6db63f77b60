"""Workers as processes of this machine, one per core or accelerator; for jobs of a cluster see `cluster.py`."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple


class Worker(NamedTuple):
    """A worker that was started."""

    name: str
    """Name in the queue."""
    ended: Callable[[], bool]
    error_message: Callable[[], str | None]
    """Error message of an ended worker; None: it did not fail."""


def worker_name(number: int) -> str:
    """Unique name of a worker, across machines."""
    return f"{os.getpid()}-{number}-{uuid.uuid4().hex[:6]}"


class Device(NamedTuple):
    """The devices that JAX finds on this machine."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    number: int
    machine: str
    """Name of the machine in results (`jaxzoo.sweep.machine`)."""

    @property
    def n_workers(self) -> int:
        """Default number of workers: one per CPU core, one per GPU, one for all chips of a TPU."""
        if self.platform == "cpu":
            return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.number if self.platform == "gpu" else 1

    def environment(self, worker: int) -> dict[str, str]:
        """Environment variables of a worker: one thread on a CPU; one GPU, whose memory workers may share."""
        if self.platform == "cpu":
            return {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
        if self.platform != "gpu":
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(i) for i in range(self.number)]
        memory = "XLA_PYTHON_CLIENT_PREALLOCATE"
        return {"CUDA_VISIBLE_DEVICES": names[worker % len(names)], memory: os.environ.get(memory, "false")}


def find_device() -> Device:
    """Asks JAX in a subprocess, because a process that starts JAX keeps the accelerator. Raises `OSError`."""
    code = (
        "import json, jax; from jaxzoo.sweep.machine import machine; "
        "print(json.dumps([jax.default_backend(), jax.local_device_count(), machine()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"JAX does not start: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return Device(*json.loads(done.stdout.splitlines()[-1]))


def as_one_program(parallel: str, platform: str) -> bool:
    """Whether runs that share a program are vmapped: with `vmap`, and on GPU and TPU with `auto`."""
    return parallel == "vmap" or (parallel == "auto" and platform != "cpu")


class LocalWorkers:
    """Worker processes on this machine, which also stop when this process is killed.

    A worker runs `python -m MODULE NAME WORDS`; its output goes to a file in `logs`.
    """

    def __init__(self, module: str, words: Sequence[str], count: int, device: Device, logs: Path):
        self._module = module
        self._words = words
        self._device = device
        self._logs = logs
        self._pool = ThreadPoolExecutor(count)
        # Standard input of the workers, which ends when this process closes its side, or ends.
        self._stdin, self._stop = os.pipe()

    def start(self, numbers: Sequence[int]) -> list[Worker]:
        names = {number: worker_name(number) for number in numbers}
        ends = {name: self._pool.submit(self._run, number, name) for number, name in names.items()}
        return [Worker(name, end.done, end.result) for name, end in ends.items()]

    def stop(self, *, finished: bool) -> None:
        """Stops all workers, which save their runs, and waits for them."""
        os.close(self._stop)
        self._pool.shutdown()
        os.close(self._stdin)

    def _run(self, number: int, name: str) -> str | None:
        """Runs a worker; returns the last line of its output, or the signal that killed it, if it failed."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as stream:
            status = subprocess.run(
                [sys.executable, "-m", self._module, name, *self._words],
                stdin=self._stdin,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **self._device.environment(number)},
                start_new_session=True,  # Ctrl-C reaches this process only, which then stops the workers
            ).returncode
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = log.read_text(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"exit status {status}") if status else None
