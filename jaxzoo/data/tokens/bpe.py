"""Byte-pair encoding by the library `tokenizers`, from GPT-2's files or any `tokenizer.json` of BPE.

    tokenizer = load_tokenizer("gpt2")           # a directory with encoder.json and vocab.bpe
    tokenizer.encode("Hello world")              # [15496, 995]

Nothing is ever downloaded.
"""

import json
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer, UInt

from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.token_shards import token_dtype
from jaxzoo.data.tokens.tokenizer_definition import Definition
from jaxzoo.extras import need

PROBE = "Tab\tand  two spaces\r\n\n naïve ŁÓDŹ 漢字 😀 \0\x7f x=['a'] 12345 don't <0x41> "
"""A text that a tokenizer must give back, with all that normalizers like to change; in NFC."""


class BPETokenizer:
    """A `Tokenizer` of the library's.

    Special tokens are never made of text: the characters `<|endoftext|>` in a document are thirteen characters.

    Args:
        definition: its vocabulary, merges and rules.

    Raises:
        ValueError: the library refuses it, or its tokens do not give a text back.
    """

    def __init__(self, definition: Definition):
        need("tokenizers", "a BPE tokenizer")
        from tokenizers import Tokenizer as Library

        self.definition = definition
        try:
            self._library = Library.from_str(json.dumps(definition.content))
        except Exception as error:  # the library has no class of its own
            if type(error) is not Exception:
                raise
            raise ValueError(f"{definition.where} is no tokenizer.json that can be used: {error}") from error
        self._library.encode_special_tokens = True
        self.vocab_size = definition.vocab_size
        self.end_of_text = definition.end_of_text_id
        self.fingerprint = definition.fingerprint
        self.name = f"bpe-{self.vocab_size}"
        self._dtype = token_dtype(self.vocab_size)
        self._bytes = np.array(definition.byte_table, object)
        self._lengths = np.array([len(token) for token in definition.byte_table], np.int64)
        self._shown = self._bytes.copy()
        for i, content in definition.special.items():
            self._shown[i] = END_OF_TEXT.encode() if i == self.end_of_text else content.encode()
        self._check()

    def encode(self, text: str) -> UInt[np.ndarray, "t"]:
        """The ids of a text, without end-of-text; uint16, or uint32 for more than 65,536 ids.

        Raises:
            ValueError: the text holds a lone surrogate, which no bytes stand for.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[UInt[np.ndarray, "t"]]:
        """The ids of each text, as `encode` gives them."""
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError as error:
            for text in texts:
                text.encode()  # raises UnicodeEncodeError, a ValueError, at a lone surrogate
            raise error
        return [np.array(encoding.ids, self._dtype) for encoding in encodings]

    def decode(self, ids: Integer[np.ndarray, "t"]) -> str:
        """The text of ids, end-of-text shown as `END_OF_TEXT`, other special tokens as themselves.

        Raises:
            ValueError: an id is outside `[0, vocab_size)`.
        """
        ids = np.asarray(ids, np.int64)
        wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
        if wrong.size:
            raise ValueError(
                f"BPETokenizer.decode ids={wrong[:3].tolist()} must be in [0, {self.vocab_size}); "
                "mask the padding of the model's vocabulary before sampling"
            )
        return b"".join(self._shown[ids]).decode("utf-8", errors="replace")

    def to_bytes(self, ids: Integer[np.ndarray, "t"]) -> bytes:
        """The bytes that ids, all in `[0, vocab_size)`, stand for; special tokens stand for none."""
        return b"".join(self._bytes[np.asarray(ids, np.int64)])

    def count_bytes(self, ids: Integer[np.ndarray, "..."]) -> int:
        """How many bytes of text ids, all in `[0, vocab_size)`, stand for."""
        return int(np.take(self._lengths, ids).sum())

    def _check(self) -> None:
        """Raises `ValueError` unless text comes back, that of special tokens too."""
        text = " ".join([PROBE, *self.definition.special.values()])
        if self.definition.scheme == "byte-fallback":
            text = text.replace(self.definition.space, " ")
        ids = self.encode(text)
        for i in ids:
            if int(i) in self.definition.special:
                rule = f"makes the special token {self.definition.special[int(i)]!r} of text that reads so"
                raise ValueError(f"{self.definition.where} {rule}; take another tokenizer")
        back, expected = self.to_bytes(ids), text.encode()
        if back != expected:
            at = next((i for i, (a, b) in enumerate(zip(back, expected, strict=False)) if a != b), len(back))
            shown = [data[max(at - 9, 0) : at + 9].decode(errors="replace") for data in (expected, back)]
            raise ValueError(
                f"{self.definition.where} does not give text back: {shown[0]!r} becomes {shown[1]!r}; a language model "
                "needs a tokenizer that keeps all characters"
            )
