"""What turns text into tokens and back; bytes as tokens, which need no training; and where tokenizers come from."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Integer, UInt, UInt16

from jaxzoo.whole_files import write_whole

END_OF_TEXT = "<|endoftext|>"
"""How `decode` shows the end-of-text token; the same characters in a text stay 13 bytes."""


class Tokenizer(Protocol):
    """Text into token ids and back. Ids are in `[0, vocab_size)`."""

    @property
    def name(self) -> str:
        """What the user knows it by."""
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


def load_tokenizer(place: str | Path, end_of_text: str | None = None) -> Tokenizer:
    """The tokenizer at a place.

    Args:
        place: `bytes`; a `tokenizer.json`; or a directory with one, with GPT-2's two files, or with token shards.
        end_of_text: the token that ends a document; None: `eos_token` of a `tokenizer_config.json` beside it, else
            `<|endoftext|>`, `</s>` and the like.

    Raises:
        ValueError: there is no tokenizer, or none whose tokens stand for bytes; it is not the one that made the token
            shards beside it; or the library is missing.
        OSError: a file cannot be read.
    """
    from jaxzoo.data.tokens.bpe import BPETokenizer  # a library that bytes do not need
    from jaxzoo.data.tokens.tokenizer_files import read_definition

    path = Path(place).expanduser()
    made = _made_by(path)
    if str(place) == "bytes" or (made == ByteTokenizer.fingerprint and not (path / "tokenizer.json").exists()):
        if end_of_text is not None:
            raise ValueError(f"--end-of-text {end_of_text!r} is for BPE; bytes have an end-of-text of their own")
        return ByteTokenizer()
    tokenizer = BPETokenizer(read_definition(path, end_of_text))
    if made not in (None, tokenizer.fingerprint):
        raise ValueError(
            f"{path} holds tokens of the tokenizer {made!r}, and the tokenizer there is {tokenizer.fingerprint!r}; "
            "restore its tokenizer.json and tokenizer_config.json, or tokenize again"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, from which `load_tokenizer` makes the same; none for bytes.

    Raises:
        OSError: they cannot be written.
    """
    from jaxzoo.data.tokens.bpe import BPETokenizer

    if isinstance(tokenizer, BPETokenizer):
        content = tokenizer.definition.content
        config = {"eos_token": tokenizer.definition.end_of_text}
        write_whole(directory / "tokenizer_config.json", json.dumps(config, ensure_ascii=False) + "\n")
        write_whole(directory / "tokenizer.json", json.dumps(content, ensure_ascii=False, sort_keys=True) + "\n")


def _made_by(path: Path) -> str | None:
    """Fingerprint of the tokenizer that made the token shards of a directory; None: it holds none."""
    from jaxzoo.data.tokens.tokenizer_files import read_json

    for name in ("manifest.json", "request.json"):
        if (path / name).is_file():
            return read_json(path / name).get("tokenizer", {}).get("fingerprint")
    return None
