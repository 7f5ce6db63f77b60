"""Tokenizers on disk: bytes, bases, a `tokenizer.json` of BPE, or GPT-2's vocabulary and merges; read and written.

    tokenizer = load_tokenizer("gpt2")           # a directory with encoder.json and vocab.bpe
    tokenizer.encode("Hello world")              # [15496, 995]

Byte-pair encoding is that of the library `tokenizers`. Nothing is ever downloaded.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from jaxzoo.config.checked import shorten
from jaxzoo.config.json_files import read_json
from jaxzoo.data.tokenizer import ByteTokenizer, DNATokenizer, Tokenizer
from jaxzoo.data.tokens.token_shards import token_dtype
from jaxzoo.data.tokens.tokenizer_definition import Definition
from jaxzoo.utils.extras import need
from jaxzoo.utils.whole_files import write_whole

PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
"""Names of GPT-2's two files: its authors', and other publishers'."""
PROBE = "Tab\tand  two spaces\r\n\n naïve ŁÓDŹ 漢字 😀 \0\x7f x=['a'] 12345 don't <0x41> "
"""Text that a tokenizer must give back, with everything that normalizers like to change; in NFC."""


def load_tokenizer(place: str | Path, end_of_text: str | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        place: `bytes` or `dna`; a `tokenizer.json`; or a directory with one, with GPT-2's two files, or with token
            shards.
        end_of_text: token that ends a document; None: `eos_token` of a `tokenizer_config.json` in its directory, else
            the first of `END_OF_TEXT_NAMES`.

    Raises:
        ValueError: there is no tokenizer, or none whose tokens stand for bytes; it is not the one that made the token
            shards in its directory; or the library is missing.
    """
    path = Path(place).expanduser()
    made = _made_by(path)
    for what, fixed in (("bytes", ByteTokenizer()), ("bases", DNATokenizer())):
        if str(place) == fixed.name or (made == fixed.fingerprint and not (path / "tokenizer.json").exists()):
            if end_of_text is not None:
                raise ValueError(f"--end-of-text {end_of_text!r} is for BPE; {what} have an end-of-text of their own")
            return fixed
    tokenizer = BPETokenizer(read_definition(path, end_of_text))
    if made not in (None, tokenizer.fingerprint):
        raise ValueError(
            f"{path} holds tokens of the tokenizer {made!r}, and the tokenizer there is {tokenizer.fingerprint!r}; "
            "restore its tokenizer.json and tokenizer_config.json, or tokenize again"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` for `load_tokenizer`; nothing for bytes and bases."""
    if isinstance(tokenizer, BPETokenizer):
        directory.mkdir(exist_ok=True)
        content = tokenizer.definition.content
        config = {"eos_token": tokenizer.definition.end_of_text}
        write_whole(directory / "tokenizer_config.json", json.dumps(config, ensure_ascii=False) + "\n")
        write_whole(directory / "tokenizer.json", json.dumps(content, ensure_ascii=False, sort_keys=True) + "\n")


def _made_by(path: Path) -> str | None:
    """Fingerprint of the tokenizer that made the token shards of a directory; None: it holds none."""
    for name in ("manifest.json", "request.json"):
        if (path / name).is_file():
            made_by = read_json(path / name, dict).get("tokenizer")
            return str(made_by.get("fingerprint")) if isinstance(made_by, dict) else ""
    return None


def gpt2_content(vocab: Mapping[str, int], merges: str) -> dict[str, Any]:
    """Makes the content of a `tokenizer.json` from GPT-2's two files: its vocabulary, and the text of its merges."""
    lines = merges.split("\n")
    pairs = [line for line in lines[lines[0].startswith("#version") :] if line.strip()]
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": dict(vocab), "merges": pairs},
    }


def read_definition(place: Path, end_of_text: str | None = None) -> Definition:
    """Reads a `tokenizer.json`, or GPT-2's two files; arguments and errors as those of `load_tokenizer`."""
    file = place / "tokenizer.json" if place.is_dir() else place
    if file.is_file():
        content = read_json(file, dict)
    else:
        pair = next(((place / a, place / b) for a, b in PAIRS if (place / a).is_file() and (place / b).is_file()), None)
        if pair is None:
            what = "holds no tokenizer" if place.exists() else "does not exist"
            raise ValueError(
                f"{place} {what}; a tokenizer is 'bytes', a tokenizer.json, or a directory with that file, with "
                "encoder.json and vocab.bpe, or with vocab.json and merges.txt"
            )
        file, merges = pair
        try:
            content = gpt2_content(read_json(file, dict), merges.read_bytes().decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{merges} must be UTF-8, but byte {error.start} is not") from error
    config = file.parent / "tokenizer_config.json"
    if end_of_text is None and config.is_file():
        end_of_text = read_json(config, dict).get("eos_token")
        end_of_text = end_of_text.get("content") if isinstance(end_of_text, dict) else end_of_text
        if not isinstance(end_of_text, str | None):
            raise ValueError(f"{config}: eos_token={shorten(end_of_text)} must be a string, or an object with content")
    return Definition(content, end_of_text, str(file))


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
