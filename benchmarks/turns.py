"""Turns of processes on one device: they compile side by side, and are timed one at a time."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TURN = "BENCHMARK_TURN"
"""Environment variable of a process that gets a turn: the path, without suffix, of its files `ready` and `go`."""


def wait_for_turn(compile_all: Callable[[], object] | None = None) -> None:
    """Waits until this process may time its programs; returns at once unless a `Process` started it. `compile_all` is
    called before waiting; it is for processes that otherwise compile while they time."""
    place = os.environ.get(TURN)
    if place is None:
        return
    if compile_all is not None:
        compile_all()
    Path(f"{place}.ready").touch()
    parent = os.getppid()
    while not Path(f"{place}.go").exists():
        if os.getppid() != parent:
            sys.exit("the process that gives turns is gone")
        time.sleep(0.02)


class Process:
    """A logged command of this Python that may call `wait_for_turn`. `words` follow the interpreter; `place` is the
    path, without suffix, of its files; `niceness` is added to that of this process."""

    def __init__(self, words: Sequence[str], place: Path, environment: Mapping[str, str], niceness: int = 0):
        self._place = place
        for suffix in ("ready", "go"):
            self._file(suffix).unlink(missing_ok=True)
        with self._file("log").open("wb") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", str(niceness), sys.executable, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment, TURN: str(place)},
                process_group=0,
            )

    def waits(self) -> bool:
        """Returns whether it has compiled or has ended."""
        return self._file("ready").exists() or self._process.poll() is not None

    def result(self, timeout: float) -> int | None:
        """Gives it the turn; returns its exit status, None if it was killed after `timeout` seconds."""
        self._file("go").touch()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.close()

    def close(self) -> None:
        """Kills the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _file(self, suffix: str) -> Path:
        return self._place.with_name(f"{self._place.name}.{suffix}")


def all_wait(processes: Sequence[Process], seconds: float) -> None:
    """Waits at most so many seconds until all processes wait for their turn."""
    end = time.monotonic() + seconds
    while not all(process.waits() for process in processes) and time.monotonic() < end:
        time.sleep(0.05)
