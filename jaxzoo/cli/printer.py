"""Streams generated texts to standard output."""

from collections.abc import Sequence
from typing import TextIO


class Printer:
    """Prints texts one after the other: the first incomplete text as it grows, later ones after it.

    Several texts get a heading `==> prompt 1 <==` each; every text ends with a newline.

    Args:
      stream: output.
      beginnings: first part of each text.
    """

    def __init__(self, stream: TextIO, beginnings: Sequence[str]):
        self._stream = stream
        self._waiting = list(beginnings)
        self._ended = [False] * len(beginnings)
        self._row = 0
        self._open()

    def write(self, row: int, text: str) -> None:
        """Adds to the text of a row."""
        self._waiting[row] += text
        self._print()

    def end(self, row: int, text: str = "") -> None:
        """Adds the last part of a row; further calls change nothing."""
        if not self._ended[row]:
            self._waiting[row] += text + "\n"
            self._ended[row] = True
        self._print()

    def _open(self) -> None:
        if len(self._waiting) > 1:
            self._stream.write(f"{chr(10) * bool(self._row)}==> prompt {self._row + 1} <==\n")
        self._print()

    def _print(self) -> None:
        if self._row == len(self._waiting):
            return
        self._stream.write(self._waiting[self._row])
        self._stream.flush()
        self._waiting[self._row] = ""
        if self._ended[self._row]:
            self._row += 1
            if self._row < len(self._waiting):
                self._open()
