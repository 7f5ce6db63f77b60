"""Retries of writes that have failed: file systems have bad moments."""

import time
from collections.abc import Callable
from typing import TypeVar

import jax

from jaxzoo.utils.screen import warn

T = TypeVar("T")

RETRY_SECONDS = (1.0, 4.0, 15.0, 60.0)
"""Waits before the second, third, ... attempt; the failure of the last one ends the run."""


def patiently(write: Callable[[], T], what: str = "", *, together: bool = False) -> T:
    """Calls `write`, which leaves no partial result where it fails, until it succeeds.

    Args:
      what: begins the warning about a failure; empty: the error says it.
      together: all processes call this, and would have to agree on each attempt: the first failure of several is the
        last.

    Raises:
      OSError: that of the last attempt.
    """
    for seconds in () if together and jax.process_count() > 1 else RETRY_SECONDS:
        try:
            return write()
        except OSError as error:
            reason = f"{what}: {error.strerror or error}" if what else str(error)
            warn(f"{reason}; not written, trying again in {seconds:g} s")
            time.sleep(seconds)
    return write()
