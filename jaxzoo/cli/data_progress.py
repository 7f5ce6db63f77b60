"""Progress of work that is done in pieces."""

import time

from jaxzoo.cli.runner import say

_EVERY = 2.0
"""Seconds between lines."""


class PieceProgress:
    """Prints to standard error how much is done, how fast, and how long the rest takes: at most every two seconds, and
    at the end.

    Args:
      unit: what is counted, in the plural.
    """

    def __init__(self, unit: str):
        self._unit = unit
        self._began: tuple[float, int] | None = None
        self._said = 0.0

    def __call__(self, name: str, done: int, total: int) -> None:
        """Reports that `done` of `total` are done, `name` being the last of them."""
        now = time.monotonic()
        if self._began is None:
            self._began = (now, done)
        if done < total and now - self._said < _EVERY:
            return
        self._said = now
        seconds, new = now - self._began[0], done - self._began[1]
        rate = f", {new / seconds:,.3g}/s, {(total - done) * seconds / new:,.0f} s left" if new and seconds else ""
        say(f"{name}: {done:,} of {total:,} {self._unit}{rate}")
