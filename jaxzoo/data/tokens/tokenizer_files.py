"""Tokenizers on disk: bytes, bases, a `tokenizer.json`, GPT-2's two files, RWKV's vocabulary; read and written.

    tokenizer = load_tokenizer("gpt2")           # a directory with encoder.json and vocab.bpe
    tokenizer.encode("Hello world")              # [15496, 995]

Nothing is ever downloaded.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxzoo.config.json_files import read_json, read_regular
from jaxzoo.data.tokenizer import ByteTokenizer, DNATokenizer, Tokenizer
from jaxzoo.data.tokens.library_tokenizer import LibraryTokenizer, token_text
from jaxzoo.data.tokens.world_tokenizer import WorldTokenizer
from jaxzoo.utils.whole_files import write_whole

PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
"""Names of GPT-2's two files: its authors', and other publishers'."""
WORLD = "rwkv_vocab*.txt"
"""File name pattern of the vocabulary of RWKV's World models."""
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Files next to a tokenizer.json that say how a text begins and ends; they are kept with a model."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
TEMPLATE = "chat_template.jinja"


def load_tokenizer(place: str | Path, end_of_text: str | None = None, *, lossless: bool = True) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      place: `bytes` or `dna`; a `tokenizer.json` or a vocabulary of RWKV; or a directory with one, with GPT-2's two
        files, or with token shards.
      end_of_text: token that ends a document; None: `eos_token` of a `tokenizer_config.json` in its directory, else
        the first of `END_OF_TEXT_NAMES`, else `eos_token_id` of a `generation_config.json`.
      lossless: for training data; False: for a model of another library. See `LibraryTokenizer`.

    Raises `ValueError` if there is no tokenizer, it is not lossless, it is not the one that made the token shards in
    its directory, or the library is missing.
    """
    path = Path(place).expanduser()
    made = _made_by(path)
    for what, fixed in (("bytes", ByteTokenizer()), ("bases", DNATokenizer())):
        if str(place) == fixed.name or (made == fixed.fingerprint and not (path / "tokenizer.json").exists()):
            if end_of_text is not None:
                raise ValueError(f"--end-of-text {end_of_text!r} is for BPE; {what} have an end-of-text of their own")
            return fixed
    world = [path] if path.match(WORLD) and path.is_file() else sorted(path.glob(WORLD))
    if world and not (path / "tokenizer.json").exists():
        return WorldTokenizer(read_regular(world[0]).decode("utf-8-sig"), str(world[0]))
    tokenizer = _read_library(path, end_of_text, lossless=lossless)
    if made not in (None, tokenizer.fingerprint):
        raise ValueError(
            f"{path} holds tokens of the tokenizer {made!r}, and the tokenizer there is {tokenizer.fingerprint!r}; "
            "restore its tokenizer.json and tokenizer_config.json, or tokenize again"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes the files that `load_tokenizer` reads, and those of `SETTINGS`; nothing for bytes and bases."""
    if isinstance(tokenizer, WorldTokenizer):
        directory.mkdir(exist_ok=True)
        write_whole(directory / "rwkv_vocab.txt", tokenizer.text)
    if not isinstance(tokenizer, LibraryTokenizer):
        return
    directory.mkdir(exist_ok=True)
    settings = {"eos_token": tokenizer.end_of_text_name, "tokenizer_class": "PreTrainedTokenizerFast"}
    files = {**tokenizer.files, "tokenizer_config.json": settings | tokenizer.files.get("tokenizer_config.json", {})}
    if (template := files.pop(TEMPLATE, None)) is not None:
        write_whole(directory / TEMPLATE, template)
    for name, content in files.items():
        write_whole(directory / name, json.dumps(content, ensure_ascii=False) + "\n")
    content = json.dumps(tokenizer.content, ensure_ascii=False, sort_keys=True)
    write_whole(directory / "tokenizer.json", content + "\n")


def _made_by(path: Path) -> str | None:
    """Returns the fingerprint of the tokenizer that made the token shards of a directory; None if it holds none."""
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


def _read_library(place: Path, end_of_text: str | None, *, lossless: bool) -> LibraryTokenizer:
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
            content = gpt2_content(read_json(file, dict), read_regular(merges).decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{merges} must be UTF-8, but byte {error.start} is not") from error
    folder = file.parent
    files: dict[str, Any] = {name: read_json(folder / name, dict) for name in SETTINGS if (folder / name).is_file()}
    if (folder / TEMPLATE).is_file():
        files[TEMPLATE] = read_regular(folder / TEMPLATE).decode("utf-8-sig")
    if (folder / "config.json").is_file():
        settings = read_json(folder / "config.json", dict)
        ids = {name: settings[name] for name in TOKEN_IDS if settings.get(name) is not None}
        files["generation_config.json"] = {**ids, **files.get("generation_config.json", {})}
    end = end_of_text or token_text(files.get("tokenizer_config.json", {}).get("eos_token"))
    if lossless:
        files = {}
    elif end_of_text:
        files["tokenizer_config.json"] = {**files.get("tokenizer_config.json", {}), "eos_token": end_of_text}
    return LibraryTokenizer(content, end, str(file), lossless=lossless, files=files)
