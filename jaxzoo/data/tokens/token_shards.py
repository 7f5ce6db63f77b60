"""Token shards: a corpus as arrays of token ids on disk, which may be larger than memory.

A token directory holds, for every split and every shard of it, three NumPy files and a note, and one manifest of all:

    request.json                  data and tokenizer; written first
    tokenizer.json                the tokenizer, its end-of-text in tokenizer_config.json; absent for bytes and bases
    train-00000.tokens.npy        (t,) uint16, or uint32 for more than 65,536 ids: each document, then end-of-text
    train-00000.starts.npy        (n,) int64, rising from 0: where each document begins
    train-00000.subsets.npy       (n,) uint16, or uint32 for more than 65,536 subsets: index of each document's
                                  subset among the sorted names in the note
    train-00000.json              the note: counts by subset and digests; its shard is whole where it exists
    manifest.json                 tokenizer, dtype, counts by subset, digests; written last

Notes and manifest hold a checksum of their own text. Shards are independent of each other: their bytes do not depend
on the order or the process in which they are made.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt

from jaxzoo.config.checked import Count, NonNegativeInt, PositiveInt
from jaxzoo.data.array_files import ArrayGroup, writing_arrays
from jaxzoo.data.resumable import read_manifest
from jaxzoo.utils.checksums import add_checksum, read_checked, text_sha256
from jaxzoo.utils.whole_files import write_json

FORMAT = 2
OTHER_FILES = 512
"""Number of open files other than arrays: libraries, checkpoints, logs."""

_ARRAYS = ("tokens", "starts", "subsets")
_AGAIN = "tokenize again into another directory"


@dataclasses.dataclass(frozen=True)
class Counts:
    documents: Count = 0
    bytes: Count = 0
    """Bytes of UTF-8 text."""
    tokens: Count = 0
    """Tokens, with one end-of-text per document."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.documents + other.documents, self.bytes + other.bytes, self.tokens + other.tokens)


@dataclasses.dataclass(frozen=True)
class ShardNote:
    subsets: dict[str, Counts]
    sha256: dict[str, str]
    empty: Count
    """Documents without a token."""
    repaired: Count
    """Documents in which U+FFFD replaces bytes that are not UTF-8."""


@dataclasses.dataclass(frozen=True)
class TokenizerIdentity:
    name: str
    fingerprint: str
    vocab_size: PositiveInt
    end_of_text: NonNegativeInt


@dataclasses.dataclass(frozen=True)
class Split:
    shards: dict[str, ShardNote]
    subsets: dict[str, Counts]

    @property
    def total(self) -> Counts:
        return sum(self.subsets.values(), Counts())


@dataclasses.dataclass(frozen=True)
class Manifest:
    format: int
    tokenizer: TokenizerIdentity
    dtype: Literal["uint16", "uint32"]
    versions: dict[str, str]
    splits: dict[str, Split]


class TokenShard:
    """Sequence of tokens with the beginnings and subsets of its documents, memory-mapped and read-only. Each array is
    compared with its digest when it is first read, which raises `OSError` if it is damaged or has a token outside of
    the vocabulary. `subsets` holds the sorted names that `subset_ids` index. Raises `ValueError` if a file is missing,
    or its size or type differs from the note's."""

    def __init__(self, directory: Path, name: str, *, dtype: str, vocab_size: int, note: ShardNote):
        self.subsets: tuple[str, ...] = tuple(sorted(note.subsets))
        self._where = f"{directory}: shard {name}"
        self._vocab_size = vocab_size
        total = sum(note.subsets.values(), Counts())
        self._length = total.tokens
        kinds = {
            "tokens": (dtype, total.tokens),
            "starts": ("int64", total.documents),
            "subsets": (str(token_dtype(len(note.subsets))), total.documents),
        }
        remedy = f"remove {name}.json and tokenize again"
        self._arrays = ArrayGroup(directory, name, kinds, note.sha256, remedy=remedy)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: slice) -> UInt[np.ndarray, "t"]:
        return self.tokens[index]

    @functools.cached_property
    def tokens(self) -> UInt[np.ndarray, "t"]:
        tokens = self._arrays["tokens"]
        if (largest := int(tokens.max())) >= self._vocab_size:
            rule = f"has the token {largest}, which must be in [0, {self._vocab_size})"
            raise OSError(f"{self._where} {rule}; {_AGAIN}")
        return tokens

    @property
    def starts(self) -> Int64[np.ndarray, "n"]:
        """Index of the first token of each document."""
        return self._arrays["starts"]

    @property
    def subset_ids(self) -> UInt[np.ndarray, "n"]:
        """Index of the subset of each document."""
        return self._arrays["subsets"]


class TokenizedDocument(NamedTuple):
    tokens: UInt[np.ndarray, "t"]
    """Without end-of-text; may be empty."""
    n_bytes: int
    subset: str
    """Name of the subset; empty if the corpus has none."""
    is_repaired: bool = False
    """Whether U+FFFD replaces bytes that are not UTF-8."""


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smaller of uint16 and uint32 that holds ids below `vocab_size`, also for subsets."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def shard_name(split: str, index: int) -> str:
    """`train-00003`."""
    return f"{split}-{index:05d}"


def write_shard(
    directory: Path, name: str, documents: Iterable[TokenizedDocument], *, vocab_size: int, end_of_text: int
) -> None:
    """Writes a shard of at least one document, whole or not at all, its note last. `name` is `shard_name` of split and
    index; `end_of_text` follows every document."""
    end = np.array([end_of_text])
    lengths: list[int] = []
    names: list[str] = []
    counts: dict[str, Counts] = {}
    n_empty = n_repaired = 0
    with writing_arrays(directory, name, {"tokens": token_dtype(vocab_size), "starts": "int64"}) as arrays:
        for document in documents:
            arrays["tokens"].append(document.tokens)
            arrays["tokens"].append(end)
            lengths.append(len(document.tokens) + 1)
            names.append(document.subset)
            new = Counts(1, document.n_bytes, lengths[-1])
            counts[document.subset] = counts.get(document.subset, Counts()) + new
            n_empty += not len(document.tokens)
            n_repaired += document.is_repaired
        if not lengths:
            raise ValueError(f"{directory}: shard {name} must have at least one document")
        ids = {subset: i for i, subset in enumerate(sorted(counts))}
        arrays["starts"].append(np.cumsum([0, *lengths[:-1]]))
    with writing_arrays(directory, name, {"subsets": token_dtype(len(ids))}) as others:
        others["subsets"].append(np.array([ids[subset] for subset in names]))
    arrays |= others
    note = ShardNote(counts, {key: writer.digest for key, writer in arrays.items()}, n_empty, n_repaired)
    write_json(directory / f"{name}.json", add_checksum(dataclasses.asdict(note)))


def read_note(directory: Path, name: str) -> ShardNote:
    """Reads the note of a complete shard. Raises `ValueError` if it is damaged."""
    return read_checked(directory / f"{name}.json", ShardNote, remedy="remove it and tokenize again")


def write_manifest(
    directory: Path, shards: Mapping[str, int], *, tokenizer: Mapping[str, Any], versions: Mapping[str, str]
) -> None:
    """Joins the notes of all shards (`shards` holds their number by split), after which the directory can be read.
    `tokenizer` has the fields of `TokenizerIdentity`, `versions` those of the software, by name."""
    splits = {}
    for split, n_shards in shards.items():
        notes = {name: read_note(directory, name) for name in (shard_name(split, i) for i in range(n_shards))}
        totals: dict[str, Counts] = {}
        for note in notes.values():
            for subset, counts in note.subsets.items():
                totals[subset] = totals.get(subset, Counts()) + counts
        splits[split] = Split(notes, totals)
    identity = TokenizerIdentity(**tokenizer)
    dtype = str(token_dtype(tokenizer["vocab_size"]))
    for name, note in ((name, note) for split in splits.values() for name, note in split.shards.items()):
        TokenShard(directory, name, dtype=dtype, vocab_size=identity.vocab_size, note=note)  # are of these sizes
    manifest = Manifest(FORMAT, identity, dtype, dict(versions), splits)  # type: ignore[arg-type]
    write_json(directory / "manifest.json", add_checksum(dataclasses.asdict(manifest)))


class TokenDirectory:
    """Finished token directory; `json` is the content of `manifest.json` without the checksum. Raises `ValueError` if
    it holds no finished shards, is damaged, or of another format."""

    def __init__(self, path: Path):
        self.path: Path = path
        command = "jaxzoo data-tokenize"
        manifest = read_manifest(path, Manifest, FORMAT, "token shards", command=command, remedy=_AGAIN)
        self.json: dict[str, Any] = dataclasses.asdict(manifest)
        self.tokenizer: TokenizerIdentity = manifest.tokenizer
        self.splits: dict[str, Split] = manifest.splits
        self._dtype = manifest.dtype

    @property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint, a colon, and 12 digits that change with any token of any split."""
        content = json.dumps(self.json["splits"], sort_keys=True)
        return f"{self.tokenizer.fingerprint}:{text_sha256(content)[:12]}"

    def split(self, name: str) -> Split:
        """Returns a split. Raises `ValueError` if there is none of that name."""
        if name not in self.splits:
            raise ValueError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def shards(self, split: str) -> tuple[TokenShard, ...]:
        """Returns the shards of a split, in order. Raises `ValueError` if there is no such split, a file is missing or
        of another size than in the manifest, or the system allows too few open files."""
        notes = self.split(split).shards
        allow_open_shards(len(notes))
        size = self.tokenizer.vocab_size
        return tuple(
            TokenShard(self.path, name, dtype=self._dtype, vocab_size=size, note=note) for name, note in notes.items()
        )


def allow_open_shards(n_shards: int) -> None:
    """Raises this process's limit of open files, often 1024, as each memory-mapped array needs one. Raises `ValueError`
    if the limit that the system sets is lower."""
    n_arrays = len(_ARRAYS) * n_shards
    needed = n_arrays + OTHER_FILES
    try:
        import resource
    except ModuleNotFoundError:  # Windows, where no such limit exists
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{n_arrays:,} arrays of token shards need {needed:,} open files, but the system allows {hard:,}; raise "
            "its hard limit (ulimit -Hn), or tokenize into fewer shards"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
