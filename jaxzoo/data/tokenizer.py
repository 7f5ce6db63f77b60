"""Base of tokenizers, and the tokenizers of bytes and of DNA bases, which need no training."""

import abc
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer, UInt, UInt16

END_OF_TEXT = "<|endoftext|>"
"""Text of the end-of-text token in `decode`; `encode` treats the same characters as plain text."""


class Tokenizer(abc.ABC):
    """Base of tokenizers; each id in `[0, vocab_size)` stands for bytes, `table[id]` (empty for special tokens).
    `shown` holds the text of special tokens in `decode`; end-of-text is always shown as `END_OF_TEXT`."""

    name: str
    vocab_size: int
    end_of_text: int
    """Id that ends a document; it stands for no byte."""
    begin: tuple[int, ...] = ()
    """Ids before the text of a prompt, by the tokenizer's own template; `encode` omits them."""
    ends: tuple[int, ...] = ()
    """Ids at which generation ends; `end_of_text` is the first."""
    fingerprint: str
    """Identity, without a colon; changes when an id changes its meaning, and then invalidates saved cursors and token
    shards."""

    def __init__(self, table: Sequence[bytes], shown: dict[int, str] | None = None):
        self.ends = self.ends or (self.end_of_text,)
        self._bytes = np.array(table, object)
        self._lengths = np.array([len(token) for token in table], np.int64)
        self._shown = self._bytes.copy()
        for i, text in {**(shown or {}), self.end_of_text: END_OF_TEXT}.items():
            self._shown[i] = text.encode()

    @abc.abstractmethod
    def encode(self, text: str) -> UInt[np.ndarray, "t"]:
        """Ids of a text, without end-of-text; the characters of a special token are plain text."""

    def encode_batch(self, texts: Sequence[str]) -> list[UInt[np.ndarray, "t"]]:
        return [self.encode(text) for text in texts]

    def prompt(self, text: str) -> UInt[np.ndarray, "t"]:
        """Ids of `begin` and a text."""
        ids = self.encode(text)
        return np.concatenate([np.array(self.begin, ids.dtype), ids])

    @property
    def begin_of_text(self) -> int:
        """Id that begins a text on request; end-of-text if there is no other."""
        return self.end_of_text

    def choose_begin(self, choice: str) -> None:
        """Sets `begin`: `auto` keeps the template's tokens, `no` removes them, `yes` requires some, by default
        `begin_of_text`."""
        if choice == "no":
            self.begin = ()
        elif choice == "yes" and not self.begin:
            self.begin = (self.begin_of_text,)

    def decode(self, ids: Integer[np.ndarray, "t"]) -> str:
        """Text of ids, U+FFFD for bytes that are not UTF-8. Raises `ValueError` for ids outside `[0, vocab_size)`."""
        ids = np.asarray(ids, np.int64)
        wrong = ids[(ids < 0) | (ids >= len(self._bytes))]
        if wrong.size:
            raise ValueError(
                f"{type(self).__name__}.decode ids={wrong[:3].tolist()} must be in [0, {len(self._bytes)}); "
                "mask the padding of the model's vocabulary before sampling"
            )
        return b"".join(self._shown[ids]).decode("utf-8", errors="replace")

    def to_bytes(self, ids: Integer[np.ndarray, "t"]) -> bytes:
        """Bytes of ids: part of a text, which may begin and end inside a character."""
        return b"".join(self._bytes[np.asarray(ids, np.int64)])

    def count_bytes(self, ids: Integer[np.ndarray, "..."]) -> int:
        return int(np.take(self._lengths, ids).sum())


class ByteTokenizer(Tokenizer):
    """Tokenizer of UTF-8 bytes, ids 0 to 255; id 256 ends a document."""

    name = "bytes"
    end_of_text = 256
    vocab_size = 257
    fingerprint = "bytes-257"

    def __init__(self) -> None:
        super().__init__([*(bytes([byte]) for byte in range(256)), b""])

    def encode(self, text: str | bytes) -> UInt16[np.ndarray, "t"]:
        """Bytes of `text` (a str as UTF-8), without an end-of-text token."""
        data = text.encode("utf-8") if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.uint16)


class DNATokenizer(Tokenizer):
    """Tokenizer of bases: A, C, G, T are 0 to 3, N is 4; id 5 ends a document. Lower case is read as upper case."""

    name = "dna"
    end_of_text = 5
    vocab_size = 6
    fingerprint = "dna-6"
    complement: np.ndarray = np.array([3, 2, 1, 0, 4, 5], np.uint16)
    """Id of the base on the other strand."""

    def __init__(self) -> None:
        super().__init__([b"A", b"C", b"G", b"T", b"N", b""])

    def encode(self, text: str) -> UInt16[np.ndarray, "t"]:
        """Ids of bases. Raises `ValueError` for other characters than A, C, G, T, N."""
        ids = _BASE_IDS[np.frombuffer(text.encode("utf-8"), np.uint8)]
        if (ids == self.vocab_size).any():
            wrong = next(c for c in text if c.upper() not in "ACGTN")
            raise ValueError(f"DNATokenizer.encode text holds {wrong!r}, which must be one of A, C, G, T, N")
        return ids


_BASE_IDS = np.full(256, DNATokenizer.vocab_size, np.uint16)
_BASE_IDS[np.frombuffer(b"ACGTNacgtn", np.uint8)] = [*range(5), *range(5)]


def reverse_complement(tokens: UInt[np.ndarray, "t"]) -> UInt[np.ndarray, "t"]:
    """Returns the ids of the other strand (reverse complement) for ids of `DNATokenizer`."""
    return DNATokenizer.complement[tokens[::-1]].astype(tokens.dtype)
