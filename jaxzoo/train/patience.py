"""Retries of writes that have failed: file systems have bad moments."""

import math
import time
from collections.abc import Callable
from typing import TypeVar

import jax

from jaxzoo.screen import warn

T = TypeVar("T")

RETRY_SECONDS = (1.0, 4.0, 15.0, 60.0)
"""Waits before the second, third, ... attempt; the failure of the last one ends the run."""


class Patience:
    """Retry times of saves that fail in a row while training goes on.

    Several processes save together and must agree on each attempt: there the first failure is the last.

    Attributes:
      due: when the next attempt is due, on the clock of `time.monotonic`; infinite where none has failed.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self._failures, self._newest = 0, None

    def failed(self, error: OSError, newest: int | None) -> None:
        """Takes note of a save that has failed, and says so.

        Args:
          error: what it raised.
          newest: step of the newest checkpoint that is complete, by which it is known whether one succeeded since.

        Raises:
          OSError: the error itself, once it has come too often.
        """
        self._failures, self._newest = (self._failures + 1 if newest == self._newest else 1), newest
        if self._failures > len(RETRY_SECONDS) or jax.process_count() > 1:
            raise error
        seconds = RETRY_SECONDS[self._failures - 1]
        self.due = time.monotonic() + seconds
        warn(f"{error}; not saved, trying again in {seconds:g} s")

    def begun(self) -> None:
        """A save is under way: until it fails nothing is due."""
        self.due: float = math.inf

    def wait(self) -> None:
        """Sleeps until the next attempt is due."""
        time.sleep(max(0.0, min(self.due - time.monotonic(), max(RETRY_SECONDS, default=0.0))))


def patiently(write: Callable[[], T], what: str) -> T:
    """Calls `write`, which leaves no partial result where it fails, until it succeeds.

    Raises:
      OSError: that of the last attempt.
    """
    for seconds in RETRY_SECONDS:
        try:
            return write()
        except OSError as error:
            warn(f"{what}: {error.strerror or error}; not written, trying again in {seconds:g} s")
            time.sleep(seconds)
    return write()
