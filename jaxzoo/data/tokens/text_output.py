"""Tokens as text while they come: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer

from jaxzoo.data.tokenizer import Tokenizer


class TextOutput:
    """The text of one row. Joined up, what `push` and `finish` return is the same however the tokens are cut.

    A character is held back until its last byte is there, and the beginning of what may become a stop string
    until it has become one or cannot any more. Of several stop strings, the one that is complete first counts
    (the longest, where several end together).

    Attributes:
      ended_by: the stop string that ended the text, which is left out of it, or None.

    Args:
      tokenizer: gives the bytes of the tokens.
      stops: strings that end the text, none of them empty.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        check_stops(stops)
        self.ended_by: str | None = None
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, ids: Integer[np.ndarray, "t"]) -> str:
        """The text that is certain now that these tokens have come; empty once the text has ended."""
        return self._take(self._decoder.decode(self._tokenizer.to_bytes(ids)))

    def finish(self) -> str:
        """The rest of the text where no stop string came; U+FFFD stands for a character without its end."""
        text = self._take(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _take(self, new: str) -> str:
        if self.ended_by is not None:
            return ""
        text = self._held + new
        found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            _, cut, self.ended_by = min(found)
            self._held = ""
        else:
            cut = len(text) - self._possible(text)
            self._held = text[cut:]
        return text[:cut]

    def _possible(self, text: str) -> int:
        """Characters at the end of `text` that a stop string may begin with."""
        longest = min(max(map(len, self._stops), default=0), len(text) + 1)
        return next((n for n in range(longest - 1, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)), 0)


def check_stops(stops: Sequence[str]) -> None:
    """Refuses what ends every text at once.

    Raises:
      ValueError: a stop string is empty.
    """
    if "" in stops:
        raise ValueError("stop='' must not be empty; every text would end before it begins")
