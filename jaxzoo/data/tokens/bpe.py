"""Byte-pair encoding by the library `tokenizers`, from GPT-2's files or any `tokenizer.json` of BPE.

    tokenizer = load_tokenizer("gpt2")           # a directory with encoder.json and vocab.bpe
    tokenizer.encode("Hello world")              # [15496, 995]

Nothing is ever downloaded.
"""

import json
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt

from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import token_dtype
from jaxzoo.data.tokens.tokenizer_definition import Definition
from jaxzoo.extras import need

PROBE = "Tab\tand  two spaces\r\n\n naïve ŁÓDŹ 漢字 😀 \0\x7f x=['a'] 12345 don't <0x41> "
"""Text that a tokenizer must give back, with everything that normalizers like to change; in NFC."""


class BPETokenizer(Tokenizer):
    """`Tokenizer` of the library.

    Special tokens are never made of text: the characters `<|endoftext|>` in a document are thirteen characters. Raises
    `ValueError` if the library refuses the definition, or if its tokens do not give a text back.
    """

    def __init__(self, definition: Definition):
        need("tokenizers", "a BPE tokenizer")
        import tokenizers

        self.definition = definition
        try:
            self._library = tokenizers.Tokenizer.from_str(json.dumps(definition.content))
        except Exception as error:  # the library has no class of its own
            if type(error) is not Exception:
                raise
            raise ValueError(f"{definition.where} is no tokenizer.json that can be used: {error}") from error
        self._library.encode_special_tokens = True
        self.vocab_size: int = definition.vocab_size
        self.end_of_text: int = definition.end_of_text_id
        self.fingerprint: str = definition.fingerprint
        self.name: str = f"bpe-{self.vocab_size}"
        self._dtype = token_dtype(self.vocab_size)
        super().__init__(definition.byte_table, definition.special)
        self._check()

    def encode(self, text: str) -> UInt[np.ndarray, "t"]:
        """Ids of a text, without end-of-text; uint16, or uint32 for more than 65,536 ids.

        Raises `ValueError` at a lone surrogate, which no bytes stand for.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[UInt[np.ndarray, "t"]]:
        """Ids of each text, as `encode` gives them."""
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError as error:
            for text in texts:
                text.encode()  # raises UnicodeEncodeError, a ValueError, at a lone surrogate
            raise error
        return [np.array(encoding.ids, self._dtype) for encoding in encodings]

    def _check(self) -> None:
        """Raises `ValueError` unless text comes back, that of special tokens too."""
        where, special = self.definition.where, self.definition.special
        text = " ".join([PROBE, *special.values()])
        if self.definition.scheme == "byte-fallback":
            text = text.replace(self.definition.space, " ")
        ids = self.encode(text)
        for i in ids.tolist():
            if i in special:
                rule = f"makes the special token {special[i]!r} of text that reads so"
                raise ValueError(f"{where} {rule}; take another tokenizer")
        back, expected = self.to_bytes(ids), text.encode()
        if back != expected:
            at = next((i for i, (a, b) in enumerate(zip(back, expected, strict=False)) if a != b), len(back))
            shown = [data[max(at - 9, 0) : at + 9].decode(errors="replace") for data in (expected, back)]
            raise ValueError(
                f"{where} does not give text back: {shown[0]!r} becomes {shown[1]!r}; a language model needs a "
                "tokenizer that keeps all characters"
            )
