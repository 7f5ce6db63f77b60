"""Resumable work queue in a directory, shared by processes and machines.

A process takes a job by a lock of the operating system on `<job>.lock`, which ends with the process. Between machines
this needs a file system with `flock`: NFS version 4 (which frees the locks of a lost machine after about 90 seconds),
GPFS, or Lustre mounted with `-o flock`. `<job>.json` holds attempt, worker and progress of a job until it is released.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from jaxzoo.config.json_files import read_json
from jaxzoo.utils.whole_files import write_whole

TELL_SECONDS = 2.0
"""Least time between two progress reports of a job."""


class WorkQueue:
    """The jobs that a worker holds, until the end of the `with` block."""

    def __init__(self, folder: Path, worker: str = ""):
        self._folder = folder
        self._worker = worker
        self._locks: dict[str, FileLock] = {}
        self._progress: dict[str, dict[str, Any]] = {}
        self._told: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self._locks):
            self.release(job)

    def take(self, job: str) -> int:
        """Takes a job. Returns the number of the attempt, from 1 on; 0: another worker holds the job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = self._lock(job)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return 0
        attempt = self._read(job).get("attempt", 0) + 1
        self._locks[job] = lock
        self.tell(job, attempt=attempt, worker=self._worker)
        return attempt

    def release(self, job: str) -> None:
        """Releases a job."""
        self._told.pop(job, None)
        if self._progress.pop(job, None):
            self._folder.joinpath(f"{job}.json").unlink(missing_ok=True)
        self._locks.pop(job).release()

    def tell(self, job: str, **progress: Any) -> None:
        """Reports the progress of a job, at most every `TELL_SECONDS`."""
        known = self._progress.setdefault(job, {})
        known |= progress
        now = time.monotonic()
        if now - self._told.get(job, -TELL_SECONDS) >= TELL_SECONDS:
            self._told[job] = now
            write_whole(self._folder / f"{job}.json", json.dumps(known) + "\n")

    def is_held(self, job: str) -> bool:
        """Whether a worker holds the job."""
        try:
            with self._lock(job).acquire(blocking=False):
                return False
        except Timeout:
            return True

    def progress(self) -> dict[str, dict[str, Any]]:
        """Progress reports by job, also those of killed workers."""
        jobs = [file.stem for file in self._folder.glob("*.json")]
        return {job: found for job in jobs if (found := self._read(job))}

    def _lock(self, job: str) -> FileLock:
        return FileLock(self._folder / f"{job}.lock", thread_local=False)

    def _read(self, job: str) -> dict[str, Any]:
        """A progress report; empty if it is missing or damaged."""
        with contextlib.suppress(OSError, ValueError):
            return read_json(self._folder / f"{job}.json", dict[str, int | float | str])
        return {}
