"""That no two processes write to one run: on one machine by a lock, across machines by a file that is touched.

The kernel drops the lock with the process that held it, but on many shared file systems it is unknown to other
machines, or there is none. So the holder also keeps a file `.claim.<number>`, which only one process can create, and
touches it every few seconds. Who finds the file of another machine waits until it has been silent for the lease, and
takes over; who sees it touched gives up. Ages are compared on the file system's own clock.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.screen import warn

PREFIX = ".claim."
"""Beginning of the names of all files here."""
BEAT_SECONDS = 5.0
"""Between two touches."""
LEASE_SECONDS = 60.0
"""A claim of another machine that was not touched for so long is void."""


class InUseError(ValueError):
    """Another process writes to the run."""

    def __init__(self, directory: Path, who: str = "another training process"):
        super().__init__(
            f"{directory} is in use by {who}; wait for it, stop it, or choose another place with --run-dir"
        )


class Claim:
    """The right to write to a directory, from `take` to `release` or to the end of this process.

    Args:
      directory: which exists.
      lease: seconds; the same for all who may claim it.
      end: ends the process, should another one have taken the directory over while this one was suspended.
    """

    def __init__(self, directory: Path, *, lease: float = LEASE_SECONDS, end: Callable[[int], Any] = os._exit):
        self._directory, self._lease, self._end = directory, lease, end
        self._lock: int | None = None
        self._file: Path | None = None
        self._released = threading.Event()

    def take(self) -> None:
        """Claims the directory; may wait for the lease of a process on another machine, and says so.

        Raises:
          InUseError: another process has it.
          OSError: the directory cannot be read or written.
        """
        self._lock = _lock(self._directory)
        try:
            self._file = self._claim()
        except BaseException:
            self.release()
            raise
        if self._file:
            beat = min(BEAT_SECONDS, self._lease / 3)
            threading.Thread(target=self._touch, args=(self._file, beat), name="claim", daemon=True).start()

    def release(self) -> None:
        """Gives the directory up."""
        self._released.set()
        if self._file:
            with contextlib.suppress(OSError):
                self._file.unlink()
        if self._lock is not None:
            os.close(self._lock)
        self._file = self._lock = None

    def _claim(self) -> Path | None:
        """Our file, when no living process has one; None: the file system knows no hard links."""
        draft = self._directory / f"{PREFIX}{uuid.uuid4().hex}"
        draft.write_text(json.dumps({"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid()}))
        try:
            dead = self._wait_for_others(draft)
            file = self._directory / f"{PREFIX}{max((holder.number for holder in dead), default=0) + 1}"
            try:
                os.link(draft, file)
            except FileExistsError:
                raise InUseError(self._directory) from None
            except OSError:
                return None
        finally:
            draft.unlink()
        if any(holder.file not in {file, *(each.file for each in dead)} for holder in _holders(self._directory)):
            file.unlink()
            raise InUseError(self._directory)
        for holder in dead:
            holder.file.unlink(missing_ok=True)
        return file

    def _wait_for_others(self, clock: Path) -> "list[_Holder]":
        """The claims of dead processes, when there are no others."""
        seen: dict[Path, float] = {}
        told = ""
        while True:
            holders = _holders(self._directory)
            living = [holder for holder in holders if not self._is_dead(holder, clock)]
            for holder in living:
                if seen.setdefault(holder.file, holder.touched) != holder.touched:
                    raise InUseError(self._directory, f"process {holder.pid} on {holder.host}")
            if not living:
                return holders
            if not told:
                told = f"{living[0].host} may be at work in {self._directory}, or has died there"
                warn(f"process {living[0].pid} on {told}; waiting up to {self._lease:.0f} s for a sign of life")
            time.sleep(min(1.0, self._lease / 10))

    def _is_dead(self, holder: "_Holder", clock: Path) -> bool:
        if self._lock is not None and holder.boot == _boot():
            return True  # it has lost the lock, which on one machine means that it has ended
        clock.touch()
        return clock.stat().st_mtime - holder.touched > self._lease

    def _touch(self, file: Path, beat: float) -> None:
        while not self._released.wait(beat):
            try:
                os.utime(file)
            except FileNotFoundError:
                if not self._released.is_set():
                    warn(f"{self._directory} has been taken over by another process while this one was suspended")
                    self._end(1)
                return
            except OSError:
                pass  # the next one may succeed


class _Holder(NamedTuple):
    """A claim that was found."""

    file: Path
    number: int
    host: str
    boot: str
    pid: int
    touched: float


def _holders(directory: Path) -> list[_Holder]:
    found = []
    for file in directory.glob(f"{PREFIX}*"):
        number = re.fullmatch("[1-9][0-9]{0,8}", file.name.removeprefix(PREFIX))
        if number:
            # Opened, a file is as new as the server has it; one that is no claim counts as none.
            with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError), file.open() as text:
                who = json.load(text)
                touched = os.fstat(text.fileno()).st_mtime
                found.append(_Holder(file, int(number[0]), who["host"], who["boot"], who["pid"], touched))
    return found


def _lock(directory: Path) -> int | None:
    """Locks a directory; None: its file system has no locks."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InUseError(directory) from None
    except OSError:
        os.close(lock)
        return None
    return lock


def _boot() -> str:
    """Which machine this is, and since when."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode()}"
