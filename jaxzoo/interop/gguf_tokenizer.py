"""Tokenizers in the metadata of GGUF files, converted to a `tokenizer.json` and its settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.library_tokenizer import LibraryTokenizer
from jaxzoo.data.tokens.world_tokenizer import WorldTokenizer

NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
"""Types of tokens."""

_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = {**_GPT2, "use_regex": False}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(numbers: str) -> list[dict[str, Any]]:
    pattern = {"Regex": "|".join((_CONTRACTIONS, numbers, _REST))}
    return [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}, _BYTES]


WORDS: Mapping[str, list[dict[str, Any]]] = {
    "default": [_GPT2],
    "gpt-2": [_GPT2],
    "olmo": [_GPT2],
    "mpt": [_GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "starcoder": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "qwen2": _words(r"\p{N}"),
}
"""Pre-tokenizers of BPE over bytes, by `tokenizer.ggml.pre`."""


def tokenizer_of(values: Mapping[str, Any], file: Path) -> Tokenizer:
    """Makes the tokenizer of a file's metadata. Raises `ValueError` unless it is BPE over bytes, SentencePiece's with
    byte fallback, or that of RWKV's World models."""
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in values.items()}
    kind, tokens = own.get("model"), own.get("tokens", ())
    types = own.get("token_type", [1] * len(tokens))
    if kind == "rwkv":
        return _world(tokens, types, file)
    if kind == "gpt2":
        content = _byte_level(own, file)
    elif kind == "llama":
        content = _sentence_piece(own)
    else:
        raise ValueError(f"{file}: tokenizer.ggml.model = {kind!r} must be gpt2, llama or rwkv")
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [
        {"id": i, "content": token, **plain, "special": types[i] != USER}
        for i, token in enumerate(tokens)
        if types[i] in (UNKNOWN, CONTROL, USER)
    ]
    ids = {f"{name}_id": own[f"{key}_id"] for name, key in NAMES.items() if f"{key}_id" in own}
    if own.get("eot_token_id") not in (None, ids.get("eos_token_id")):
        ids["eos_token_id"] = [ids["eos_token_id"], own["eot_token_id"]]
    settings = {name: tokens[own[f"{key}_id"]] for name, key in NAMES.items() if f"{key}_id" in own}
    settings["add_bos_token"] = bool(own.get("add_bos_token", kind == "llama"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if "tokenizer.chat_template" in values:
        settings["chat_template"] = values["tokenizer.chat_template"]
    content["post_processor"] = _template(settings, ids)
    files = {"tokenizer_config.json": settings, "generation_config.json": ids}
    return LibraryTokenizer(content, settings.get("eos_token"), str(file), lossless=False, files=files)


NAMES = {"bos_token": "bos_token", "eos_token": "eos_token", "pad_token": "padding_token"}
"""Special tokens of the hub, and their names in GGUF."""


def _world(tokens: Sequence[str], types: Sequence[int], file: Path) -> WorldTokenizer:
    """Makes the tokenizer of tokens that are written like the inside of a Python literal of bytes."""
    lines = []
    for i, token in enumerate(tokens):
        if types[i] == NORMAL:
            content = token.encode("latin-1").decode("unicode_escape").encode("latin-1")
            lines.append(f"{i} {content!r} {len(content)}")
    return WorldTokenizer("\n".join(lines), str(file))


def _byte_level(own: Mapping[str, Any], file: Path) -> dict[str, Any]:
    pre = own.get("pre", "default")
    if pre not in WORDS:
        raise ValueError(f"{file}: tokenizer.ggml.pre = {pre!r} must be one of {', '.join(WORDS)}")
    vocab = {token: i for i, token in enumerate(own["tokens"])}
    model = {"type": "BPE", "vocab": vocab, "merges": [pair.split(" ") for pair in own["merges"]]}
    model["ignore_merges"] = pre == "llama-bpe"
    words = {"type": "Sequence", "pretokenizers": WORDS[pre]}
    return {"version": "1.0", "normalizer": None, "pre_tokenizer": words, "decoder": _GPT2, "model": model}


def _sentence_piece(own: Mapping[str, Any]) -> dict[str, Any]:
    """BPE over characters: pairs of pieces merge in the order of the scores of the results."""
    tokens: Sequence[str] = own["tokens"]
    scores: Sequence[float] = own["scores"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = []
    for i, token in enumerate(tokens):
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        merges += [(-scores[i], vocab[a], vocab[b], a, b) for a, b in halves if a in vocab and b in vocab]
    unknown = tokens[own.get("unknown_token_id", 0)]
    model = {"type": "BPE", "vocab": vocab, "merges": [[a, b] for *_, a, b in sorted(merges)]}
    model |= {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix = [{"type": "Prepend", "prepend": "▁"}] * bool(own.get("add_space_prefix", True))
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    steps = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": model,
    }


def _template(settings: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the post-processor that puts the begin token before a text, if the file asks for it."""
    if not settings["add_bos_token"] or "bos_token" not in settings:
        return None
    name, i = settings["bos_token"], ids["bos_token_id"]
    begin, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    special = {name: {"id": name, "ids": [i], "tokens": [name]}}
    pair = [begin, text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": [begin, text], "pair": pair, "special_tokens": special}
