"""Processes that compile one case each, run it on request, and are killed if they hang."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

COMPILE_S = 120.0
"""Time limit of starting a process and compiling, in seconds."""
PROBE_S = 60.0
"""Time limit of computing x + 1, in seconds; starting JAX on a GPU takes about ten."""
PROBE = """
import json, jax
device = jax.devices()[0]
assert float(jax.numpy.ones(()) + 1) == 2
found = {"platform": jax.default_backend(), "device": device.device_kind, "jax": jax.__version__}
found |= {"capability": getattr(device, "compute_capability", None), "cores": getattr(device, "core_count", None)}
print(json.dumps(found))
"""
# The GPU interpreter blocks one thread of XLA's pool for every warpgroup.
ENVIRONMENT = {
    "cpu": {"JAX_PLATFORMS": "cpu", "NPROC": "16"},
    "gpu": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_TRACEBACK_FILTERING": "off"},
    "tpu": {},
}
"""Environment of the processes by platform: several processes share the memory of a GPU."""
KEPT_LINES = 40
"""Output lines of a failed process in the report."""
MOST_AHEAD = {"cpu": 16, "gpu": 12, "tpu": 0}
"""Processes that compile while another one runs; a TPU serves only one process."""


class Job:
    """A process that compiles one entry of a list in a module, and runs it in `result`.

    entry: (name of the list, platform, index); environment: variables in addition to `ENVIRONMENT`.
    """

    def __init__(
        self,
        module: str,
        entry: tuple[str, str, int],
        options: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ):
        self._files = tempfile.TemporaryDirectory()
        self._folder = Path(self._files.name)
        (self._folder / "options.json").write_text(json.dumps(options))
        command = [sys.executable, "-m", "pallas_kernels.verify.worker", module, *map(str, entry), str(self._folder)]
        variables = {**os.environ, **ENVIRONMENT[entry[1]], **(environment or {})}
        self._start = time.monotonic()
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env=variables
            )

    def result(self, timeout: float) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Status, message and seconds, and the worker's arrays (None if it failed). Ends the process.

        timeout: of the runs after compilation, in seconds.
        """
        with contextlib.closing(self):
            turn = time.monotonic()
            (self._folder / "go").touch()
            phase = self._wait(timeout)
            seconds = {"seconds": round(time.monotonic() - turn, 1)}
            if phase is not None:
                return {"status": "timeout", "message": f"killed while it was {phase}", **seconds}, None
            if self._process.returncode:
                text = (self._folder / "output").read_text(errors="replace")
                lines = text.splitlines() or [f"status {self._process.returncode}"]
                return {"status": "failed", "message": lines[-1][:500], "output": lines[-KEPT_LINES:], **seconds}, None
            with np.load(self._folder / "found.npz") as saved:
                return seconds, {key: saved[key] for key in saved.files}

    def compile(self) -> None:
        """Waits until the process has compiled its entry, has failed, or has reached its time limit."""
        while self._process.poll() is None and not self._compiled() and time.monotonic() < self._start + COMPILE_S:
            time.sleep(0.02)

    def close(self) -> None:
        """Kills the process and its children, and removes its files."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._files.cleanup()

    def _compiled(self) -> bool:
        return (self._folder / "compiled").exists()

    def _wait(self, timeout: float) -> str | None:
        """Waits for the end of the process; returns the phase in which it reached its time limit, or None."""
        phase, end = "compiling", self._start + COMPILE_S
        while self._process.poll() is None:
            if phase == "compiling" and self._compiled():
                phase, end = "running", time.monotonic() + timeout
            elif time.monotonic() > end:
                return phase
            time.sleep(0.02)
        return None


def batch_size(platform: str) -> int:
    """Number of processes that may compile in parallel."""
    return max(1, min(2 * MOST_AHEAD[platform], os.cpu_count() or 1))


def in_turn(start: Callable[[int], Job], count: int, platform: str) -> Generator[Job, None, None]:
    """Yields jobs 0 to count - 1 in order; later jobs start early and compile while one runs."""
    ahead = min(MOST_AHEAD[platform], os.cpu_count() or 1)
    jobs: dict[int, Job] = {}
    try:
        for index in range(count):
            for following in range(index, min(index + ahead + 1, count)):
                if following not in jobs:
                    jobs[following] = start(following)
            yield jobs.pop(index)
    finally:
        for job in jobs.values():
            job.close()


def probe() -> dict[str, Any] | None:
    """JAX's default device, if it computes x + 1 in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return json.loads(done.stdout.splitlines()[-1])
