"""The token directories of a run: opened together, of one tokenizer, known by one fingerprint."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.data.pieces.open_files import allow_open_files
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import ARRAYS, Counts, TokenDirectory
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer

SHOWN_SUBSETS = 4
"""Named in the summary; the largest ones."""


def open_directories(paths: Sequence[str], splits: Sequence[str]) -> list[TokenDirectory]:
    """The token directories, so that the shards of these splits can be read in all of them at once.

    Raises:
      ValueError: a directory holds no token shards, or there are more shards than files may be open.
    """
    directories = [TokenDirectory(Path(path).expanduser()) for path in paths]
    found = [d.splits[split].shards for d in directories for split in splits if split in d.splits]
    allow_open_files(len(ARRAYS) * sum(map(len, found)))
    return directories


def tokenizer_of(directories: Sequence[TokenDirectory], *, expected: str = "") -> Tokenizer:
    """The tokenizer of all directories.

    Args:
      directories: at least one.
      expected: which one it must be, as `load_tokenizer` takes it; empty: any.

    Raises:
      ValueError: two directories are of different ones, or not of that which is expected; or what lies beside the first
        one's shards is not what made them.
    """
    made_by = [directory.tokenizer.fingerprint for directory in directories]
    for directory, other in zip(directories, made_by, strict=True):
        if other != made_by[0]:
            raise ValueError(
                f"TokenDataConfig.sources must be of one tokenizer, but {directory.path} was made by {other!r} and "
                f"{directories[0].path} by {made_by[0]!r}; tokenize one of them again"
            )
    if expected and (found := load_tokenizer(expected).fingerprint) != made_by[0]:
        raise ValueError(
            f"TokenDataConfig.expected_tokenizer={expected!r} is {found!r}, but {directories[0].path} was made by "
            f"{made_by[0]!r}; name that one, or tokenize again"
        )
    return load_tokenizer(directories[0].path)


def fingerprint_of(directories: Sequence[TokenDirectory]) -> str:
    """The tokenizer's own, a colon, and 12 digits of all directories in their order."""
    if len(directories) == 1:
        return directories[0].fingerprint
    content = json.dumps([directory.fingerprint for directory in directories])
    made_by = directories[0].tokenizer.fingerprint
    return f"{made_by}:{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def describe(subsets: dict[str, Counts]) -> str:
    """Tokens and documents, and the largest subsets with their shares of the tokens."""
    n_tokens = sum(counts.tokens for counts in subsets.values())
    n_documents = sum(counts.documents for counts in subsets.values())
    ranked = sorted(subsets, key=lambda name: -subsets[name].tokens)
    shown = [f"{name} {100 * subsets[name].tokens / n_tokens:.0f} %" for name in ranked[:SHOWN_SUBSETS]]
    more = [f"{len(ranked) - SHOWN_SUBSETS} more"] if len(ranked) > SHOWN_SUBSETS else []
    names = f" ({', '.join([*shown, *more])})" if len(ranked) > 1 else ""
    return f"{n_tokens:,} tokens in {n_documents:,} documents{names}"
