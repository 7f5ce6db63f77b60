"""Which worker does which task: claims in a directory that workers share, on one machine or on many.

A worker says that it lives by touching a file of its own. It claims a task by creating `<task>.<attempt>`, which only
one can create. Where the claim's worker lives no more, the next attempt is free: whoever creates it takes the task
over. The time is the file system's own, so that clocks of machines need not agree.
"""

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from jaxzoo.whole_files import write_whole

BEAT_SECONDS = 5.0
"""Between two signs of life."""
LEASE_SECONDS = 90.0
"""A worker that was silent for so long is dead."""
MOST_ATTEMPTS = 3
"""A task that was lost so often is not tried again: it may be what ends its workers."""


class Shared(Protocol):
    """A directory of tasks that workers share."""

    @property
    def claims(self) -> Path:
        """Folder of the claims."""
        ...

    @property
    def workers(self) -> Path:
        """Folder of the workers' signs of life."""
        ...

    def done(self) -> set[str]:
        """The tasks that are done."""
        ...

    def failed(self) -> set[str]:
        """Those that have failed."""
        ...

    def write_failure(self, task: str, failure: Mapping[str, Any]) -> None:
        """Says that a task has failed: `error`, one line."""
        ...


class Claim(NamedTuple):
    """The newest claim on a task."""

    worker: str
    """Whose."""
    attempt: int
    """Which, from 1 on."""


class Queue:
    """The claims of one worker. Inside the block it lives; behind it what it has not done is free again.

    Args:
      directory: of the tasks.
      worker: its name, which no other has.
      lease: seconds of silence after which a worker is dead.
    """

    def __init__(self, directory: Shared, worker: str, *, lease: float = LEASE_SECONDS):
        self._directory, self._worker, self._lease = directory, worker, lease
        self._life = directory.workers / f"{worker}.json"
        self._ours: dict[str, int] = {}
        self._news: dict[str, Any] = {}
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._life.write_text("{}\n")
        self._beats.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        self._ended.set()
        self._beats.join()
        for task in list(self._ours):
            self.release(task)
        self._life.unlink(missing_ok=True)

    def take(self, task: str) -> bool:
        """Claims a task, if it has neither result nor failure and no living worker has it."""
        if task in self._directory.done() | self._directory.failed():
            return False
        claim = newest_claims(self._directory).get(task)
        if claim and claim.worker in living(self._directory, self._lease, self._worker):
            return False
        attempt = claim.attempt + 1 if claim else 1
        if attempt > MOST_ATTEMPTS:
            error = f"its worker ended without a word {MOST_ATTEMPTS} times: killed, perhaps for memory"
            self._directory.write_failure(task, {"error": error})
            return False
        if not _create(self._directory, task, Claim(self._worker, attempt)):
            return False
        self._ours[task] = attempt
        if task in self._directory.done():  # by a worker that ended between the two looks
            self.release(task)
            return False
        return True

    def holds(self, task: str) -> bool:
        """Whether the task is still ours: no other worker took us for dead."""
        return newest_claims(self._directory).get(task) == Claim(self._worker, self._ours.get(task, 0))

    def release(self, task: str) -> None:
        """Gives up a claim: the task is done, or free."""
        attempt = self._ours.pop(task)
        (self._directory.claims / f"{task}.{attempt}").unlink(missing_ok=True)
        self._news.pop(task, None)

    def tell(self, task: str, **news: Any) -> None:
        """What those who watch may know of a task: how far it is, how good."""
        self._news[task] = {**self._news.get(task, {}), **news}

    def _beat(self) -> None:
        while not self._ended.wait(min(BEAT_SECONDS, self._lease / 3)):
            with contextlib.suppress(OSError):  # the next one may succeed
                write_whole(self._life, json.dumps(self._news) + "\n")


def newest_claims(directory: Shared) -> dict[str, Claim]:
    """By task."""
    found: dict[str, Claim] = {}
    for path in directory.claims.iterdir():
        task, _, number = path.name.partition(".")
        if number.isdecimal() and int(number) > found.get(task, Claim("", 0)).attempt:
            with contextlib.suppress(FileNotFoundError):
                found[task] = Claim(path.read_text(), int(number))
    return found


def living(directory: Shared, lease: float = LEASE_SECONDS, us: str = "watcher") -> set[str]:
    """The names of the workers that gave a sign of life within the lease."""
    clock = directory.workers / f".{us}-{uuid.uuid4().hex[:8]}"
    clock.touch()
    now = clock.stat().st_mtime
    clock.unlink()
    found = set()
    for path in directory.workers.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            if now - path.stat().st_mtime < lease:
                found.add(path.stem)
    return found


def bury(directory: Shared, workers: Iterable[str]) -> None:
    """Says that these workers are dead, for those who know it before the lease ends."""
    for worker in workers:
        (directory.workers / f"{worker}.json").unlink(missing_ok=True)
        _note(directory, worker).unlink(missing_ok=True)


def has_begun(directory: Shared, worker: str) -> bool:
    """Whether the worker is at the queue: it has not ended in good order, and is not buried."""
    return (directory.workers / f"{worker}.json").exists()


def tell_to_stop(directory: Shared, worker: str) -> None:
    """Leaves a note for a worker that no signal of ours reaches; `bury` takes it away."""
    _note(directory, worker).touch()


def told_to_stop(directory: Shared, worker: str) -> bool:
    """Whether there is a note for this worker."""
    return _note(directory, worker).exists()


def news(directory: Shared) -> Mapping[str, dict[str, Any]]:
    """What living workers tell of their tasks."""
    found: dict[str, dict[str, Any]] = {}
    for worker in living(directory):
        with contextlib.suppress(OSError, ValueError):
            found |= json.loads((directory.workers / f"{worker}.json").read_text())
    return found


def _note(directory: Shared, worker: str) -> Path:
    return directory.workers / f"{worker}.stop"


def _create(directory: Shared, task: str, claim: Claim) -> bool:
    """Creates the claim with its content at once; False: another worker was faster."""
    draft = directory.claims / f".{claim.worker}-{task}"
    draft.write_text(claim.worker)
    try:
        os.link(draft, directory.claims / f"{task}.{claim.attempt}")
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
