"""Standard output and warnings that survive a closed pipe or a full disk, and errors that end a command."""

import contextlib
import os
import sys
from typing import TextIO


class Failure(Exception):
    """Ends a command with one line and status 1."""


class Screen:
    """Writes to a stream until it fails for the first time, and nothing after that.

    Attributes:
      is_terminal: whether the stream is a terminal.

    Args:
      stream: the stream; None: nothing is written.
    """

    def __init__(self, stream: TextIO | None):
        self.is_terminal: bool = stream is not None and stream.isatty()
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes and flushes the text."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            with contextlib.suppress(OSError):  # into nowhere: the interpreter flushes the stream once more at its end
                nowhere = os.open(os.devnull, os.O_WRONLY)
                try:
                    os.dup2(nowhere, self._stream.fileno())
                finally:
                    os.close(nowhere)
            self._stream = None

    def flush(self) -> None:
        """Does nothing: `write` has flushed. Rich writes to a screen as to a file."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.is_terminal

    def say(self, line: str) -> None:
        """Writes a line."""
        self.write(printable(line) + "\n")


def printable(text: str) -> str:
    """A text with its control characters spelled out: a name in a file may hold commands to the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


_muted = False


def warn(line: str) -> None:
    """Prints a warning on standard error."""
    if not _muted:
        Screen(sys.stderr).say(f"warning: {line}")


def mute() -> None:
    """Drops the warnings and errors of this process: process 0 of the run prints them."""
    global _muted
    _muted = True


def is_muted() -> bool:
    """Whether another process prints for this one."""
    return _muted
