"""Runs of several real processes on loopback, each with two CPU devices."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT = 400.0
"""Seconds after which a run that still goes on is a failed test."""


class Ended(NamedTuple):
    """Exit status and output of each process."""

    statuses: list[int]
    out: list[str]
    err: list[str]


class Launched:
    """Processes that run."""

    def __init__(self, directory: Path, commands: Sequence[Sequence[str]]):
        flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": flags,
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": str(directory.parent / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        self.until = time.monotonic() + LIMIT
        self._files = [(directory / f"out{i}", directory / f"err{i}") for i in range(len(commands))]
        self._processes = []
        for command, (out, err) in zip(commands, self._files, strict=True):
            with out.open("w") as stdout, err.open("w") as stderr:
                words = [sys.executable, *command]
                self._processes.append(subprocess.Popen(words, env=environment, stdout=stdout, stderr=stderr, cwd=ROOT))

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Until it is true; a process that ends before is a failure."""
        while not what():
            assert time.monotonic() < self.until, "too slow"
            assert all(process.poll() is None for process in self._processes), self.ended()
            time.sleep(0.02)

    def kill(self, process: int, number: signal.Signals) -> None:
        self._processes[process].send_signal(number)

    def ended(self, within: float = LIMIT) -> Ended:
        """Waits for all."""
        until = time.monotonic() + within
        statuses = [process.wait(max(until - time.monotonic(), 0.1)) for process in self._processes]
        texts = [[_without_gloo(path.read_text()) for path in files] for files in self._files]
        return Ended(statuses, [out for out, _ in texts], [err for _, err in texts])

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def launched(directory: Path, *words: str, n: int = 2, port: int | None = None) -> Iterator[Launched]:
    """`jaxzoo train` with these words in n processes."""
    port = port or free_port()
    directory.mkdir(exist_ok=True)
    group = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(n), "--wait", "300"]
    processes = Launched(directory, [["-m", "jaxzoo.train", *words, *group, "--process", str(i)] for i in range(n)])
    try:
        yield processes
    finally:
        processes.end()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _without_gloo(text: str) -> str:
    """Without the lines, torn by several threads, in which XLA's collectives on CPUs count their connections."""
    lines = (line for line in text.splitlines(keepends=True) if line.strip())
    return "".join(line for line in lines if "[Gloo]" not in line and "peer ranks" not in line)
