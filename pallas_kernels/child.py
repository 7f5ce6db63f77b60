"""Child processes of `verify` and `compile_check`: one call each, with a time limit; a failure is one line.

The result of a function is pickled. If it is a function, the child calls it once the parent asks for the result: it has
compiled a program by then, and has left the device to others. A child ends with its parent.
"""

import contextlib
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

POLL_S = 0.02
KEPT_LINES = 40
"""Last lines of the output of a failed child in reports."""
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)


class Outcome(NamedTuple):
    """Result of a child, or the reason of its failure."""

    status: str
    """ok, timeout or failed."""
    output: str
    """Standard output and standard error."""
    seconds: float
    """Duration of the wait for the result."""
    value: Any = None
    """Result of the function; None after a failure."""
    message: str = ""
    """Reason of a failure."""

    def failure(self) -> dict[str, Any]:
        """Entries of a report."""
        lines = self.output.splitlines()[-KEPT_LINES:]
        return {"status": self.status, "message": self.message, "output": lines, "seconds": self.seconds}


class Child:
    """Process that calls `function` with JSON arguments.

    limit: seconds for start and compilation; environment: added to the variables of this process.
    """

    def __init__(
        self, function: Callable, arguments: Mapping[str, Any], limit: float, environment: Mapping[str, str] = {}
    ):
        self._files = tempfile.TemporaryDirectory()
        self._folder = Path(self._files.name)
        (self._folder / "call.json").write_text(json.dumps(arguments))
        command = [sys.executable, "-m", __name__, function.__module__, function.__name__, self._files.name]
        variables = {**os.environ, **environment}
        self._end = time.monotonic() + limit
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env=variables
            )

    def prepare(self) -> None:
        """Waits until the child has compiled its program, has ended, or has reached its time limit."""
        while self._process.poll() is None and not self._prepared() and time.monotonic() < self._end:
            time.sleep(POLL_S)

    def result(self, timeout: float = 0.0) -> Outcome:
        """Calls the returned function, for at most `timeout` seconds, and ends the process."""
        with contextlib.closing(self):
            start = time.monotonic()
            (self._folder / "go").touch()
            self.prepare()
            phase, end = ("running", time.monotonic() + timeout) if self._prepared() else ("compiling", self._end)
            while self._process.poll() is None and time.monotonic() < end:
                time.sleep(POLL_S)
            seconds = round(time.monotonic() - start, 1)
            output = (self._folder / "output").read_text(errors="replace")
            if self._process.returncode is None:
                return Outcome("timeout", output, seconds, message=f"killed while it was {phase}")
            if self._process.returncode:
                lines = _ERROR.findall(output) or output.splitlines() or [f"status {self._process.returncode}"]
                return Outcome("failed", output, seconds, message=lines[-1][:500])
            return Outcome("ok", output, seconds, pickle.loads((self._folder / "result").read_bytes()))

    def close(self) -> None:
        """Kills the process and its children, and removes its files."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._files.cleanup()

    def _prepared(self) -> bool:
        return (self._folder / "prepared").exists()


def in_turn(start: Callable[[int], Child], count: int, ahead: int) -> Generator[Child, None, None]:
    """Yields children 0 to count - 1 in order; the next `ahead` ones start early and compile while one runs."""
    children: dict[int, Child] = {}
    try:
        for index in range(count):
            for following in range(index, min(index + ahead + 1, count)):
                if following not in children:
                    children[following] = start(following)
            yield children.pop(index)
    finally:
        for child in children.values():
            child.close()


def host_pool(count: int) -> ProcessPoolExecutor:
    """Processes that use the CPU alone: only children touch an accelerator."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=use_host)


def use_host() -> None:
    """Keeps JAX from using an accelerator in this process."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def main(module: str, function: str, folder: str) -> None:
    files, parent = Path(folder), os.getppid()
    found = getattr(importlib.import_module(module), function)(**json.loads((files / "call.json").read_text()))
    if callable(found):
        (files / "prepared").touch()
        while not (files / "go").exists():
            if os.getppid() != parent:
                sys.exit("the parent is gone")
            time.sleep(POLL_S)
        found = found()
    (files / "result").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
