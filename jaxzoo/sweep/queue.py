"""The queue of a sweep: which worker makes which run.

A worker takes a run by a lock of the operating system on `running/<run>.lock`, which ends with the worker's process,
however that ends. So no run is lost with its worker, and no two workers make one. Between machines the locks hold where
the shared file system has `flock`: NFS version 4, GPFS, and Lustre that is mounted with `-o flock`. A server frees the
locks of a machine that is gone when its lease ends, on NFS after about 90 seconds.

`running/<run>.json` says which attempt this is, which worker makes it, and how far it is. It is removed with the lock's
release, and stays where a worker was killed.
"""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout

from jaxzoo.config.json_files import read_json
from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.utils.whole_files import write_whole

MOST_ATTEMPTS = 3
"""A run whose workers were killed so often is not tried again: it may be what ends them."""
TELL_SECONDS = 2.0
"""Least time between two progress reports of a run."""


class TaskProgress(NamedTuple):
    """Contents of a progress report."""

    attempt: int = 1
    """Which attempt this is."""
    worker: str = ""
    """Name of the worker."""
    step: int | None = None
    steps: int | None = None
    score: float | None = None
    """Accuracy of the newest validation."""


class Queue:
    """The runs that the worker of this name has. At the end of the block they are released."""

    def __init__(self, directory: SweepDirectory, worker: str):
        self._directory, self._worker = directory, worker
        self._locks: dict[str, FileLock] = {}
        self._progress: dict[str, dict[str, Any]] = {}
        self._told: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in list(self._locks):
            self.release(run)

    def take(self, run: str) -> bool:
        """Takes a run, unless it has a result or a failure, or a worker makes it."""
        lock = _lock(self._directory, run)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        attempt = _progress(self._directory, run).get("attempt", 0) + 1
        if attempt > MOST_ATTEMPTS and not self._directory.is_settled(run):
            error = f"its worker was killed {MOST_ATTEMPTS} times, perhaps because memory ran out"
            self._directory.write_failure(run, {"error": error})
        if self._directory.is_settled(run):  # also by a worker that ended while we looked
            lock.release()
            return False
        self._locks[run] = lock
        self.tell(run, attempt=attempt, worker=self._worker)
        return True

    def release(self, run: str) -> None:
        """Gives up a run: it is done, has failed, or is free."""
        lock = self._locks.pop(run)
        self._told.pop(run, None)
        if self._progress.pop(run, None):
            self._directory.running(run, "json").unlink(missing_ok=True)
        lock.release()

    def tell(self, run: str, **progress: Any) -> None:
        """Reports how far a run is, at most every `TELL_SECONDS`."""
        known = self._progress.setdefault(run, {})
        known |= progress
        now = time.monotonic()
        if now - self._told.get(run, -TELL_SECONDS) >= TELL_SECONDS:
            self._told[run] = now
            write_whole(self._directory.running(run, "json"), json.dumps(known) + "\n")


def is_held(directory: SweepDirectory, run: str) -> bool:
    """Whether a worker makes the run now."""
    try:
        with _lock(directory, run).acquire(blocking=False):
            return False
    except Timeout:
        return True


def progress_of_all(directory: SweepDirectory) -> Mapping[str, dict[str, Any]]:
    """Progress reports by run, also of runs whose worker was killed."""
    return {run: found for run in directory.reported() if (found := _progress(directory, run))}


def _lock(directory: SweepDirectory, run: str) -> FileLock:
    return FileLock(directory.running(run, "lock"), thread_local=False)


def _progress(directory: SweepDirectory, run: str) -> dict[str, Any]:
    """A progress report; one that is missing or damaged says nothing, and the run begins its first attempt."""
    with contextlib.suppress(OSError, ValueError):
        found = read_json(directory.running(run, "json"), TaskProgress)
        return {name: value for name, value in found._asdict().items() if value is not None}
    return {}
