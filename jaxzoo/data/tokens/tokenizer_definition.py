"""Analysis of a `tokenizer.json`: fingerprint, bytes of each id, and a lossless form for training data.

The library `tokenizers` decides which tokens a text becomes. This module adds:

- the fingerprint, which is equal if all ids have the same meaning, whatever the files;
- the bytes of each id, of BPE over bytes (GPT-2: Radford et al. 2019; GPT-NeoX, Llama 3) and of BPE over characters
  with byte fallback (Llama 2, Mistral, Gemma);
- the lossless form, in which the tokens of a document decode to its bytes: no begin token, no added leading space, no
  dropout, no truncation. If a file normalizes to NFC, they decode to the normalized text.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_DEFAULTS = {"use_regex": True, "split": True}
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PLAIN_TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}

Json = Mapping[str, Any]


def lossless(content: Json, end_of_text: str) -> dict[str, Any]:
    """Returns the lossless form of a `tokenizer.json`; merges are pairs, and `end_of_text` is a special token."""
    model = content["model"]
    ids = token_ids(content)
    stages = {name: _without_prefix(content.get(name)) for name in ("normalizer", "pre_tokenizer")}
    added = [{**_PLAIN_TOKEN, **token} for token in added_tokens(content) if token["content"] != end_of_text]
    added.append({"id": ids[end_of_text], "content": end_of_text, **_PLAIN_TOKEN, "special": True})
    found = {
        **content,
        **dict.fromkeys(("truncation", "padding", "post_processor")),
        **stages,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
    }
    if "merges" in model:
        merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]
        found["model"] = {**model, "type": "BPE", "dropout": None, "merges": merges}
    return found


def added_tokens(content: Json) -> list[dict[str, Any]]:
    return list(content.get("added_tokens") or ())


def token_ids(content: Json) -> dict[str, int]:
    vocab = content["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: pairs of token and score
        vocab = {token: i for i, (token, _) in enumerate(vocab)}
    return {**vocab, **{token["content"]: token["id"] for token in added_tokens(content)}}


def scheme(content: Json) -> str | None:
    """Returns `byte-level` or `byte-fallback` BPE; None if tokens stand for no bytes of their own."""
    if "merges" not in content["model"]:
        return None
    if any(part.get("type") == "ByteLevel" for part in _parts(content, ("normalizer", "pre_tokenizer"))):
        return "byte-level"
    return "byte-fallback" if content["model"].get("byte_fallback") else None


def byte_table(content: Json) -> list[bytes]:
    """Returns the bytes of each id; empty for special tokens and ids without token. Needs a `scheme`."""
    added, ids = added_tokens(content), token_ids(content)
    table = [b""] * (max(ids.values()) + 1)
    alphabet, is_byte_level, space = byte_alphabet(), scheme(content) == "byte-level", space_of(content)
    for token, i in content["model"]["vocab"].items():
        if is_byte_level:
            table[i] = bytes(map(alphabet.__getitem__, token)) if alphabet.keys() >= set(token) else token.encode()
        else:
            byte = _BYTE.fullmatch(token)
            table[i] = bytes([int(byte[1], 16)]) if byte else token.replace(space, " ").encode()
    for token in added:
        table[token["id"]] = b"" if token.get("special") else token["content"].encode()
    return table


def space_of(content: Json) -> str:
    """Returns the character for a space in tokens with byte fallback."""
    for part in _parts(content, ("normalizer", "pre_tokenizer")):
        if part.get("type") == "Metaspace":
            return part.get("replacement", "▁")
        if part.get("type") == "Replace" and part.get("pattern") == {"String": " "}:
            return part["content"]
    return " "


def fingerprint(content: Json, end_of_text: str) -> str:
    """Returns `bpe-<ids>-<12 digits>`, or another kind's name: the same for the same meaning of all ids."""
    plain = lossless(content, end_of_text)
    model, ids = plain["model"], token_ids(plain)
    added = [
        [t["id"], t["content"], None if t["special"] else _plain({**t, "content": None})] for t in plain["added_tokens"]
    ]
    meaning = {
        "normalizer": _plain(plain.get("normalizer")),
        "pre_tokenizer": _plain(plain.get("pre_tokenizer")),
        "added": added,
        "end_of_text": ids[end_of_text],
    }
    if "merges" in model:
        meaning |= {"scheme": scheme(plain), "vocab": model["vocab"], "merges": model["merges"]}
        meaning["ignore_merges"] = bool(model.get("ignore_merges"))
    else:
        meaning["model"] = model
    digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
    kind = "bpe" if "merges" in model else str(model.get("type", "words")).lower()
    return f"{kind}-{max(ids.values()) + 1}-{digest[:12]}"


def _without_prefix(part: Any) -> Any:
    """Returns a normalizer or pre-tokenizer without the space before a text; None if nothing remains."""
    if not isinstance(part, dict) or part.get("type") == "Prepend":
        return None
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            return {**part, name: [kept for each in part[name] if (kept := _without_prefix(each)) is not None]}
    if part.get("type") == "Metaspace":
        return {k: v for k, v in part.items() if k != "add_prefix_space"} | {"prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if part.get("type") == "ByteLevel" else part


def _parts(content: Json, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yields all steps of the named stages, with those of sequences."""
    for part in filter(None, map(content.get, names)):
        yield part
        for inner in ("normalizers", "pretokenizers"):
            for each in part.get(inner, ()):
                yield from _parts({"it": each}, ("it",))


def _plain(value: Any) -> Any:
    """Removes fields that equal their defaults."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {k: _plain(v) for k, v in value.items() if k != "trim_offsets"}
    return {k: v for k, v in kept.items() if (v is not True if k in _DEFAULTS else v not in (None, False, "", []))}


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's character for each byte: itself if it is printable Latin-1, else one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
