"""Token shards: a corpus as arrays of token ids on disk, many times the size of memory.

A token directory holds, for every split and every shard of it, three NumPy files and a note, and one manifest of all:

    request.json                  which data and which tokenizer; written first
    tokenizer.json                what made the tokens, its end-of-text in tokenizer_config.json; absent for bytes
    train-00000.tokens.npy        (t,) uint16, or uint32 for more than 65,536 ids: each document, then end-of-text
    train-00000.starts.npy        (n,) int64, rising from 0: where each document begins
    train-00000.subsets.npy       (n,) uint16: index of each document's subset among the sorted names in the note
    train-00000.json              the note: counts by subset and digests; its shard is whole where it exists
    manifest.json                 tokenizer, dtype, counts by subset, digests; written last

Shards know nothing of each other: whoever makes them, in whatever order, makes the same bytes.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt, UInt16

from jaxzoo.data.pieces.array_writer import require_digest, writing_array
from jaxzoo.data.pieces.open_files import allow_open_files
from jaxzoo.whole_files import write_json

FORMAT = 1
"""Format of the directory; another number is refused."""

ARRAYS = ("tokens", "starts", "subsets")


class Counts(NamedTuple):
    """Content of a shard, a subset or a split."""

    documents: int
    bytes: int
    """Bytes of UTF-8 text, before it was tokenized."""
    tokens: int
    """End-of-text tokens included, one a document."""

    def plus(self, other: "Counts") -> "Counts":
        """The sums over both."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class TokenShard:
    """One shard: a sequence of tokens, with the beginnings and subsets of its documents.

    The arrays are memory-mapped, read-only. Each is compared with its digest when it is first read.

    Attributes:
        subsets: names that `subset_ids` index, sorted.

    Args:
        directory: the token directory.
        name: `shard_name` of split and index.
        arrays: those of the files, by the names in `ARRAYS`.
        note: what the manifest says of the shard.
    """

    def __init__(
        self, directory: "TokenDirectory", name: str, arrays: Mapping[str, np.ndarray], note: Mapping[str, Any]
    ):
        self.subsets = tuple(sorted(note["subsets"]))
        self._directory, self._name, self._arrays, self._digests = directory, name, arrays, note["sha256"]

    def __len__(self) -> int:
        return len(self._arrays["tokens"])

    def __getitem__(self, index: slice) -> UInt[np.ndarray, "t"]:
        return self.tokens[index]

    @functools.cached_property
    def tokens(self) -> UInt[np.ndarray, "t"]:
        """The token ids, below the vocabulary's size."""
        tokens = self._checked("tokens")
        if (largest := int(tokens.max())) >= self._directory.vocab_size:
            raise ValueError(
                f"{self._directory.path}: shard {self._name} has the token {largest}, which must be in "
                f"[0, {self._directory.vocab_size}); tokenize again into another directory"
            )
        return tokens

    @functools.cached_property
    def starts(self) -> Int64[np.ndarray, "n"]:
        """Index of the first token of each document."""
        return self._checked("starts")

    @functools.cached_property
    def subset_ids(self) -> UInt16[np.ndarray, "n"]:
        """Index of the subset of each document."""
        return self._checked("subsets")

    def _checked(self, key: str) -> np.ndarray:
        file, remedy = self._directory.path / f"{self._name}.{key}.npy", f"remove {self._name}.json and tokenize again"
        require_digest(self._arrays[key], self._digests[key], file, remedy)
        return self._arrays[key]


class TokenizedDocument(NamedTuple):
    """Document of a shard."""

    tokens: UInt[np.ndarray, "t"]
    """Without end-of-text; may be empty."""
    n_bytes: int
    """Bytes of its text."""
    subset: str
    """Which part of the corpus it is of; empty where there are no parts."""
    is_repaired: bool = False
    """Whether U+FFFD stands for what was no UTF-8."""


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds ids below `vocab_size`."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def shard_name(split: str, index: int) -> str:
    """`train-00003`."""
    return f"{split}-{index:05d}"


def is_whole(directory: Path, name: str) -> bool:
    """Whether this shard has been written to its end."""
    return (directory / f"{name}.json").is_file()


def write_shard(
    directory: Path, name: str, documents: Iterable[TokenizedDocument], *, vocab_size: int, end_of_text: int
) -> None:
    """Writes a shard: whole or not at all, its note last.

    Args:
        directory: exists.
        name: `shard_name` of split and index.
        documents: at least one.
        vocab_size: ids are below.
        end_of_text: id after every document.

    Raises:
        ValueError: there is no document.
        OSError: it cannot be written.
    """
    dtype = token_dtype(vocab_size)
    end = np.array([end_of_text], dtype)
    lengths: list[int] = []
    names: list[str] = []
    counts: dict[str, Counts] = {}
    n_empty = n_repaired = 0
    with writing_array(directory / f"{name}.tokens.npy", dtype) as tokens:
        for document in documents:
            tokens.append(document.tokens.astype(dtype, copy=False))
            tokens.append(end)
            lengths.append(len(document.tokens) + 1)
            names.append(document.subset)
            new = Counts(1, document.n_bytes, lengths[-1])
            counts[document.subset] = counts.get(document.subset, Counts(0, 0, 0)).plus(new)
            n_empty += not len(document.tokens)
            n_repaired += document.is_repaired
        if not lengths:
            raise ValueError(f"{directory}: shard {name} must have at least one document")
    ids = {subset: i for i, subset in enumerate(sorted(counts))}
    arrays = {
        "starts": np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]).astype(np.int64),
        "subsets": np.array([ids[n] for n in names], np.uint16),
    }
    digests = {"tokens": tokens.digest}
    for key, array in arrays.items():
        with writing_array(directory / f"{name}.{key}.npy", array.dtype) as writer:
            writer.append(array)
        digests[key] = writer.digest
    note = {"subsets": {subset: counts[subset]._asdict() for subset in ids}, "sha256": digests}
    write_json(directory / f"{name}.json", note | {"empty": n_empty, "repaired": n_repaired})


def write_manifest(
    directory: Path, shards: Mapping[str, int], *, tokenizer: Mapping[str, Any], versions: Mapping[str, str]
) -> None:
    """Joins the notes of all shards; the directory can be read from then on.

    Args:
        directory: the shards'.
        shards: how many each split has.
        tokenizer: `name`, `fingerprint`, `vocab_size` and `end_of_text`.
        versions: of the software that made the tokens, by name.

    Raises:
        OSError: a shard's note cannot be read, or the manifest not be written.
    """
    splits = {}
    for split, n_shards in shards.items():
        names = [shard_name(split, i) for i in range(n_shards)]
        notes = {name: json.loads((directory / f"{name}.json").read_text()) for name in names}
        splits[split] = {"shards": notes, "subsets": _total(notes.values())}
    manifest = {
        "format": FORMAT,
        "tokenizer": dict(tokenizer),
        "dtype": str(token_dtype(tokenizer["vocab_size"])),
        "versions": dict(versions),
        "splits": splits,
    }
    write_json(directory / "manifest.json", manifest)


@dataclasses.dataclass(frozen=True)
class TokenDirectory:
    """A finished token directory.

    Args:
        path: the directory.

    Raises:
        ValueError: there is none, it is not finished, or of another format.
    """

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / "manifest.json").is_file():
            raise ValueError(
                f"{self.path} holds no token shards: manifest.json is missing; make them, or finish them, with "
                "python -m jaxzoo.data.tokenize"
            )
        try:
            manifest = json.loads((self.path / "manifest.json").read_text())
        except ValueError as error:
            raise ValueError(f"{self.path}/manifest.json must be JSON: {error}; tokenize again") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            found = manifest.get("format") if isinstance(manifest, dict) else None
            raise ValueError(f"{self.path}/manifest.json: format={found!r} must be {FORMAT}; tokenize again")
        object.__setattr__(self, "_manifest", manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        """Content of `manifest.json`."""
        return self._manifest  # type: ignore[attr-defined]

    @property
    def vocab_size(self) -> int:
        """Ids are in `[0, vocab_size)`."""
        return self.manifest["tokenizer"]["vocab_size"]

    @property
    def end_of_text(self) -> int:
        """Id after every document."""
        return self.manifest["tokenizer"]["end_of_text"]

    @property
    def fingerprint(self) -> str:
        """The tokenizer's own, a colon, and 12 digits that change when any token of any split does."""
        content = json.dumps(self.manifest["splits"], sort_keys=True)
        return f"{self.manifest['tokenizer']['fingerprint']}:{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    def counts(self, split: str) -> dict[str, Counts]:
        """Content of each subset of a split, by name."""
        return {name: Counts(**counts) for name, counts in self._split(split)["subsets"].items()}

    def odd(self, split: str) -> tuple[int, int]:
        """How many documents of a split are empty, and in how many U+FFFD stands for what was no UTF-8."""
        notes = self._split(split)["shards"].values()
        return sum(note["empty"] for note in notes), sum(note["repaired"] for note in notes)

    def shards(self, split: str) -> tuple[TokenShard, ...]:
        """The shards of a split, in order.

        Raises:
            ValueError: there is no such split, a file is missing or of another size than the manifest says, or there
                are more than files may be open.
        """
        allow_open_files(len(ARRAYS) * len(self._split(split)["shards"]))
        return tuple(self._read(name, note) for name, note in self._split(split)["shards"].items())

    def _split(self, split: str) -> dict[str, Any]:
        splits = self.manifest["splits"]
        if split not in splits:
            raise ValueError(f"{self.path} has no split {split!r}; it has {', '.join(splits)}")
        return splits[split]

    def _read(self, name: str, note: Mapping[str, Any]) -> TokenShard:
        total = _sum(note["subsets"].values())
        sizes = (total.tokens, total.documents, total.documents)
        dtypes = (self.manifest["dtype"], "int64", "uint16")
        arrays = {}
        for key, size, dtype in zip(ARRAYS, sizes, dtypes, strict=True):
            file = self.path / f"{name}.{key}.npy"
            try:
                array = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise ValueError(f"{file} cannot be read: {error}; remove {name}.json and tokenize again") from error
            if array.shape != (size,) or array.dtype != dtype:
                raise ValueError(
                    f"{file} holds {array.dtype}{list(array.shape)} and must hold {dtype}[{size}], as the manifest "
                    f"says; remove {name}.json and tokenize again"
                )
            arrays[key] = array
        return TokenShard(self, name, arrays, note)


def _sum(counts: Iterable[Mapping[str, int]]) -> Counts:
    total = Counts(0, 0, 0)
    for each in counts:
        total = total.plus(Counts(**each))
    return total


def _total(notes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Counts by subset over all shards."""
    totals: dict[str, Counts] = {}
    for note in notes:
        for subset, counts in note["subsets"].items():
            totals[subset] = totals.get(subset, Counts(0, 0, 0)).plus(Counts(**counts))
    return {subset: totals[subset]._asdict() for subset in sorted(totals)}
