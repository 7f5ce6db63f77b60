"""Stop tokens, which say little about recall: function words, punctuation, white space, the end of a text."""

from collections.abc import Collection
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from jaxzoo.data.tokenizer import Tokenizer


def read_stop_words(path: Path | None = None) -> frozenset[str]:
    """Reads the words of a text file (None: this package's), one per line, lower-cased; # begins a comment line."""
    file = resources.files("jaxzoo.data.statistics") / "stop_words.txt" if path is None else path
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8 text: {error}") from error
    words = (line.strip().lower() for line in text.splitlines())
    return frozenset(word for word in words if word and not word.startswith("#"))


def stop_tokens(tokenizer: Tokenizer, words: Collection[str]) -> Bool[np.ndarray, "vocab"]:
    """Marks tokens that are stop words, or have neither letter nor digit, or end a document.

    A token is compared by its text alone, without case and the space around it: a piece of a longer word counts as the
    word that it spells. A token that holds a part of a character is no punctuation.
    """
    result = np.zeros(tokenizer.vocab_size, bool)
    for i in range(tokenizer.vocab_size):
        text = tokenizer.decode(np.array([i])).strip().lower()
        result[i] = text in words or not any(c.isalnum() or c == "\ufffd" for c in text)
    result[tokenizer.end_of_text] = True
    return result
