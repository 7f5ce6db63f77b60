"""Tokenizers on disk: bytes, bases, a `tokenizer.json`, or GPT-2's vocabulary and merges; read and written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxzoo.checked import shorten
from jaxzoo.data.tokenizer import ByteTokenizer, DNATokenizer, Tokenizer
from jaxzoo.data.tokens.bpe import BPETokenizer
from jaxzoo.data.tokens.tokenizer_definition import Definition
from jaxzoo.json_files import read_json
from jaxzoo.whole_files import write_whole

PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
"""Names of GPT-2's two files: its authors', and other publishers'."""


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
