"""A standard output that may end before the program does: a closed pipe, a full disk."""

import contextlib
import os
import sys
from typing import TextIO


class Screen:
    """Writes to a stream until it fails for the first time, and then nothing more.

    Attributes:
      is_terminal: whether it can draw over a line.

    Args:
      stream: where to; None: nowhere.
    """

    def __init__(self, stream: TextIO | None):
        self.is_terminal = stream is not None and stream.isatty()
        self._stream = stream

    def write(self, text: str) -> None:
        """Shows the text at once."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            silence(self._stream)
            self._stream = None

    def say(self, line: str) -> None:
        """Writes a line."""
        self.write(line + "\n")


_hushed = False


def warn(line: str) -> None:
    """Prints a warning on standard error, if anybody reads it."""
    if not _hushed:
        Screen(sys.stderr).say(f"warning: {line}")


def hush() -> None:
    """Leaves warnings and errors to process 0 of the run."""
    global _hushed
    _hushed = True


def is_hushed() -> bool:
    """Whether another process speaks for this one."""
    return _hushed


def silence(stream: TextIO) -> None:
    """Sends what comes, and what the stream still holds, nowhere: the interpreter flushes once more at its end."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
