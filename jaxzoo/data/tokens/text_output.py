"""Streaming decoder of tokens, which holds back incomplete characters and stop strings."""

import codecs
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer

from jaxzoo.data.tokenizer import Tokenizer


class TextOutput:
    """Incremental decoder of one row: the joined results of `push` and `finish` do not depend on how tokens are split.
    Incomplete characters and possible prefixes of a stop string are held back. The stop string that is complete first
    ends the text (the longest, if several end together); it is left out, and `ended_by` holds it."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        check_stops(stops)
        self.ended_by: str | None = None
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def push(self, ids: Integer[np.ndarray, "t"]) -> str:
        """Returns the text that is final after these tokens; empty once the text has ended."""
        return self._take(self._decoder.decode(self._tokenizer.to_bytes(ids)))

    def finish(self) -> str:
        """Returns the rest of a text without a stop string; U+FFFD replaces an incomplete character."""
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
            cuts = range(max(len(text) + 1 - max(map(len, self._stops), default=1), 0), len(text))
            cut = next((at for at in cuts if any(stop.startswith(text[at:]) for stop in self._stops)), len(text))
            self._held = text[cut:]
        return text[:cut]


def check_stops(stops: Sequence[str]) -> None:
    if "" in stops:
        raise ValueError("stop='' must not be empty; every text would end before it begins")
