"""Definition of a BPE tokenizer: the JSON of a `tokenizer.json`, adapted to language modelling.

Two kinds are known, whose tokens give every text back byte for byte:

- BPE over bytes (GPT-2: Radford et al. 2019; GPT-NeoX, Llama 3): each character of a token stands for one byte;
- BPE over characters with byte fallback (Llama 2, Mistral, Gemma): U+2581 is written for a space, `<0x0A>` for a byte.

Our deviations from what the file may ask for: no begin token, no space before a text that has none (the first word of
a document alone gets other ids), no dropout, no truncation. The text is the normalized one where a file normalizes to
NFC, and U+2581 itself reads as a space in the second kind.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxzoo.data.tokenizer import END_OF_TEXT

END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""Default end-of-text tokens: the first of them in the vocabulary."""

UTF8_BYTES = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
"""Bytes that occur in UTF-8."""

_DEFAULTS = {"use_regex": True, "split": True}
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclasses.dataclass(frozen=True)
class Definition:
    """Tokenizer as data.

    Args:
        content: of a `tokenizer.json`; changed as the module docstring says.
        end_of_text: token that ends a document; None: the first of `END_OF_TEXT_NAMES` in the vocabulary.
        where: name in errors.

    Raises:
        ValueError: it is of no known kind, lacks a byte, or has no such end-of-text.
    """

    content: dict[str, Any]
    end_of_text: str | None
    where: str

    def __post_init__(self) -> None:
        try:
            content = _settled(self.content)
            vocab = content["model"]["vocab"]
            known = {**vocab, **{token["content"]: token["id"] for token in content["added_tokens"]}}
            ids = set(known.values())
        except (KeyError, TypeError, AttributeError) as error:
            is_missing = isinstance(error, KeyError)
            what = f"{error} is missing" if is_missing else f"its fields are of another type: {error}"
            raise ValueError(f"{self.where} must be a tokenizer.json of BPE, but {what}") from error
        if not all(isinstance(i, int) and 0 <= i < 2**32 for i in ids):
            raise ValueError(f"{self.where}: ids of its vocabulary must be integers in [0, 2^32)")
        chosen = self.end_of_text or next((name for name in END_OF_TEXT_NAMES if name in known), None)
        if chosen is None:
            raise ValueError(
                f"{self.where} has no token that is known to end a document ({', '.join(END_OF_TEXT_NAMES)}); name it "
                "with --end-of-text TOKEN"
            )
        if chosen not in known:
            raise ValueError(f"{self.where} has no token {chosen!r} to end a document with; name another --end-of-text")
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added = [{**dict.fromkeys(flags, False), **t} for t in content["added_tokens"] if t["content"] != chosen]
        added.append({"id": known[chosen], "content": chosen, **flags})
        content["added_tokens"] = sorted(added, key=lambda token: token["id"])
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "end_of_text", chosen)
        if self.scheme is None:
            raise ValueError(
                f"{self.where} is BPE neither over bytes nor with byte fallback: its tokens stand for no bytes; take "
                "another tokenizer, or make one with python -m jaxzoo.data.train_tokenizer"
            )
        lacking = UTF8_BYTES - {token[0] for token in self.byte_table if len(token) == 1}
        if lacking:
            raise ValueError(f"{self.where} must have a token for every byte, but lacks 0x{min(lacking):02X}")

    @property
    def scheme(self) -> str | None:
        """`byte-level`, `byte-fallback`, or neither."""
        if any(part.get("type") == "ByteLevel" for part in _parts(self.content, ("normalizer", "pre_tokenizer"))):
            return "byte-level"
        return "byte-fallback" if self.content["model"].get("byte_fallback") else None

    @property
    def end_of_text_id(self) -> int:
        """Id of the token that ends a document."""
        return next(token["id"] for token in self.content["added_tokens"] if token["content"] == self.end_of_text)

    @property
    def vocab_size(self) -> int:
        """Number of ids, also of those without a token."""
        return max(max(self.content["model"]["vocab"].values()), *(t["id"] for t in self.content["added_tokens"])) + 1

    @property
    def special(self) -> dict[int, str]:
        """Tokens that stand for no text, by id."""
        return {token["id"]: token["content"] for token in self.content["added_tokens"] if token["special"]}

    @functools.cached_property
    def byte_table(self) -> list[bytes]:
        """Bytes that each id stands for; none for special tokens and ids without token."""
        table = [b""] * self.vocab_size
        alphabet, is_byte_level, space = byte_alphabet(), self.scheme == "byte-level", self.space
        for token, i in self.content["model"]["vocab"].items():
            if is_byte_level:
                table[i] = bytes(map(alphabet.__getitem__, token)) if alphabet.keys() >= set(token) else token.encode()
            else:
                byte = _BYTE.fullmatch(token)
                table[i] = bytes([int(byte[1], 16)]) if byte else token.replace(space, " ").encode()
        for token in self.content["added_tokens"]:
            table[token["id"]] = b"" if token["special"] else token["content"].encode()
        return table

    @property
    def space(self) -> str:
        """Character for a space in tokens with byte fallback."""
        for part in _parts(self.content, ("normalizer", "pre_tokenizer")):
            if part.get("type") == "Metaspace":
                return part.get("replacement", "▁")
            if part.get("type") == "Replace" and part.get("pattern") == {"String": " "}:
                return part["content"]
        return " "

    @functools.cached_property
    def fingerprint(self) -> str:
        """`bpe-<ids>-<12 digits>`: the same for the same meaning of all ids, in whatever files it came."""
        model = self.content["model"]
        added = [
            [t["id"], t["content"], None if t["special"] else _plain({**t, "content": None})]
            for t in self.content["added_tokens"]
        ]
        meaning = {
            "scheme": self.scheme,
            "vocab": model["vocab"],
            "merges": model["merges"],
            "ignore_merges": bool(model.get("ignore_merges")),
            "normalizer": _plain(self.content.get("normalizer")),
            "pre_tokenizer": _plain(self.content.get("pre_tokenizer")),
            "added": added,
            "end_of_text": self.end_of_text_id,
        }
        digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
        return f"bpe-{self.vocab_size}-{digest[:12]}"


def _settled(content: Mapping[str, Any]) -> dict[str, Any]:
    """Applies the deviations of the module docstring; merges as pairs."""
    model = content["model"]
    if model.get("type", "BPE") != "BPE":
        raise TypeError(f"model.type={model['type']!r}")
    merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]
    stages = {name: _without_prefix(content.get(name)) for name in ("normalizer", "pre_tokenizer")}
    return {
        **content,
        **dict.fromkeys(("truncation", "padding", "post_processor")),
        **stages,
        "added_tokens": list(content.get("added_tokens") or ()),
        "model": {**model, "type": "BPE", "dropout": None, "merges": merges},
    }


def _without_prefix(part: Any) -> Any:
    """Returns a normalizer or pre-tokenizer without the space before a text; None if nothing is left of it."""
    if not isinstance(part, dict) or part.get("type") == "Prepend":
        return None
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            return {**part, name: [kept for each in part[name] if (kept := _without_prefix(each)) is not None]}
    if part.get("type") == "Metaspace":
        return {k: v for k, v in part.items() if k != "add_prefix_space"} | {"prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if part.get("type") == "ByteLevel" else part


def _parts(content: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yields all steps of the named stages, those of sequences one by one."""
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
