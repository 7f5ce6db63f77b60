"""Interface of tokenizers, and those of bytes and of bases, which need no training."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Integer, UInt, UInt16

END_OF_TEXT = "<|endoftext|>"
"""How `decode` shows the end-of-text token; the same characters in a text stay 13 bytes."""


class Tokenizer(Protocol):
    """Text into token ids and back. Ids are in `[0, vocab_size)`."""

    @property
    def name(self) -> str:
        """Name for the user."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def end_of_text(self) -> int:
        """The id that ends a document; it stands for no byte."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when an id gets another meaning: a saved cursor, and token shards, are valid under one meaning only.
        No colon in it."""
        ...

    def encode(self, text: str) -> UInt[np.ndarray, "t"]:
        """The ids of a text, without end-of-text; what looks like a special token in it is text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[UInt[np.ndarray, "t"]]:
        """The ids of each text, as `encode` gives them."""
        ...

    def decode(self, ids: Integer[np.ndarray, "t"]) -> str:
        """The text of ids, end-of-text shown as `END_OF_TEXT`, U+FFFD where bytes are no UTF-8.

        Raises:
            ValueError: an id is outside `[0, vocab_size)`.
        """
        ...

    def to_bytes(self, ids: Integer[np.ndarray, "t"]) -> bytes:
        """The bytes that ids stand for: a part of a text, which may begin and end inside a character."""
        ...

    def count_bytes(self, ids: Integer[np.ndarray, "..."]) -> int:
        """How many bytes of text ids stand for."""
        ...


class ByteTokenizer:
    """Id = byte of the UTF-8 text, 0 to 255; id 256 ends a document and stands for no byte."""

    name = "bytes"
    end_of_text = 256
    vocab_size = 257
    fingerprint = "bytes-257"
    """Changes when an id gets another meaning: a saved cursor is valid under one meaning only."""

    def encode(self, text: str | bytes) -> UInt16[np.ndarray, "t"]:
        """The bytes of `text` (a str as UTF-8), without an end-of-text token."""
        data = text.encode("utf-8") if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.uint16)

    def encode_batch(self, texts: Sequence[str | bytes]) -> list[UInt16[np.ndarray, "t"]]:
        """The bytes of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Integer[np.ndarray, "t"]) -> str:
        """The text of `ids` (any one-dimensional array or list of integers).

        Bytes that are no UTF-8 become U+FFFD, since a sample may stop inside a character; end-of-text is
        shown as `END_OF_TEXT`, since a sample that hides where a document ends misleads.

        Raises:
            ValueError: an id is outside `[0, 257)`.
        """
        ids = np.asarray(ids, np.int64)
        wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
        if wrong.size:
            raise ValueError(
                f"ByteTokenizer.decode ids={wrong[:3].tolist()} must be in [0, {self.vocab_size}); "
                "mask the padding of the model's vocabulary before sampling"
            )
        documents = np.split(ids, np.flatnonzero(ids == self.end_of_text))
        return END_OF_TEXT.join(self.to_bytes(d).decode("utf-8", errors="replace") for d in documents)

    def to_bytes(self, ids: Integer[np.ndarray, "t"]) -> bytes:
        """The bytes that `ids`, all in `[0, 257)`, stand for: a part of a text that may begin and end inside a
        character; end-of-text stands for none."""
        return bytes(ids[ids != self.end_of_text].astype(np.uint8))

    def count_bytes(self, ids: Integer[np.ndarray, "..."]) -> int:
        """How many bytes of text `ids` stand for: all but end-of-text count one."""
        return int(np.count_nonzero(np.asarray(ids) != self.end_of_text))


class DNATokenizer:
    """Ids of bases: A, C, G, T are 0 to 3, N is 4; id 5 ends a document. Lower case is read as upper case."""

    name = "dna"
    end_of_text = 5
    vocab_size = 6
    fingerprint = "dna-6"
    letters = b"ACGTN"
    complement = np.array([3, 2, 1, 0, 4, 5], np.uint16)
    """Id of the base on the other strand, by id."""

    def encode(self, text: str) -> UInt16[np.ndarray, "t"]:
        """The ids of bases.

        Raises:
            ValueError: a character is none of A, C, G, T, N.
        """
        ids = _BASE_IDS[np.frombuffer(text.encode("utf-8"), np.uint8)]
        if (ids == self.vocab_size).any():
            wrong = next(c for c in text if c.upper() not in "ACGTN")
            raise ValueError(f"DNATokenizer.encode text holds {wrong!r}, which must be one of A, C, G, T, N")
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[UInt16[np.ndarray, "t"]]:
        """The ids of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Integer[np.ndarray, "t"]) -> str:
        """The bases of `ids`, end-of-text shown as `END_OF_TEXT`.

        Raises:
            ValueError: an id is outside `[0, 6)`.
        """
        ids = np.asarray(ids, np.int64)
        wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
        if wrong.size:
            raise ValueError(
                f"DNATokenizer.decode ids={wrong[:3].tolist()} must be in [0, {self.vocab_size}); "
                "mask the padding of the model's vocabulary before sampling"
            )
        documents = np.split(ids, np.flatnonzero(ids == self.end_of_text))
        return END_OF_TEXT.join(self.to_bytes(d).decode() for d in documents)

    def to_bytes(self, ids: Integer[np.ndarray, "t"]) -> bytes:
        """The letters of `ids`, all in `[0, 6)`; end-of-text stands for none."""
        ids = np.asarray(ids, np.int64)
        return bytes(np.frombuffer(self.letters, np.uint8)[ids[ids != self.end_of_text]])

    def count_bytes(self, ids: Integer[np.ndarray, "..."]) -> int:
        """How many bases `ids` stand for: all but end-of-text count one."""
        return int(np.count_nonzero(np.asarray(ids) != self.end_of_text))


_BASE_IDS = np.full(256, DNATokenizer.vocab_size, np.uint16)
_BASE_IDS[np.frombuffer(DNATokenizer.letters + DNATokenizer.letters.lower(), np.uint8)] = [*range(5), *range(5)]


def reverse_complement(tokens: UInt[np.ndarray, "t"]) -> UInt[np.ndarray, "t"]:
    """Ids of `DNATokenizer` on the other strand, which is read the other way round."""
    return DNATokenizer.complement[tokens[::-1]].astype(tokens.dtype)
