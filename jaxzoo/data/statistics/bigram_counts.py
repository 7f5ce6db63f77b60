"""Exact counts of the bigrams in a stream of tokens, on disk, for streams larger than memory.

Zoology (sec. 3) calls the end of a repeated bigram an associative recall hit only where training showed the bigram at
most 1,250 times. A directory of counts holds

    manifest.json         fingerprint of the tokens, number of pairs and of distinct pairs, digests; written last
    bigrams.keys.npy      (n,) uint64, rising: the first token times 2^32, plus the second
    bigrams.counts.npy    (n,) int64, positive

The bytes depend on the stream alone: neither on workers or memory, nor on how often the count was interrupted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from jaxzoo.checked import Count
from jaxzoo.data.pieces.array_files import open_array, require_digest
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.json_files import read_json

FORMAT = 2
"""Format of the directory; another number is refused."""
THRESHOLD = 1250
"""Zoology's, for 10 billion tokens of training."""
AGAIN = "remove its directory and count again"
"""Remedy for damaged counts."""


class Manifest(NamedTuple):
    """Content of `manifest.json`."""

    kind: Literal["bigrams"]
    format: int
    tokens: str
    """Fingerprint of the token directory."""
    split: str
    total: Count
    """Pairs."""
    distinct: Count
    """Distinct pairs."""
    sha256: dict[str, str]


class SortedCounts(NamedTuple):
    """Counts of keys; entries in rising order of their keys, each key once."""

    keys: UInt64[np.ndarray, "n"]
    counts: Int64[np.ndarray, "n"]


class BigramCounts:
    """Directory of counts, memory-mapped.

    Attributes:
        manifest: content of `manifest.json`.
        entries: counts of all pairs that occur, by `pair_keys`.
        fingerprint: fingerprint of the counted tokens.

    Raises:
        ValueError: there are no counts, or they are not finished, of another size or of another format.
        OSError: a file is damaged.
    """

    def __init__(self, path: Path):
        self.path: Path = path
        file = path / "manifest.json"
        if not file.is_file():
            raise ValueError(
                f"{path} holds no bigram counts: manifest.json is missing; make them, or finish them, with "
                "python -m jaxzoo.data.bigrams"
            )
        self.manifest: Manifest = read_json(file, Manifest, checksum=True, remedy=AGAIN)
        if self.manifest.format != FORMAT:
            raise ValueError(f"{file}: format={self.manifest.format} must be {FORMAT}; {AGAIN}")
        self.entries: SortedCounts = read_counts(path, "bigrams", self.manifest.distinct, self.manifest.sha256)
        self.fingerprint: str = self.manifest.tokens

    def check_made_from(self, tokens: TokenDirectory) -> None:
        """Raises `ValueError`, with both fingerprints, if other tokens were counted."""
        if tokens.fingerprint != self.fingerprint:
            raise ValueError(
                f"{self.path} counts the bigrams of tokens {self.fingerprint}, and {tokens.path} holds "
                f"{tokens.fingerprint}; count these with python -m jaxzoo.data.bigrams"
            )

    def counts(
        self, previous: Integer[np.ndarray, "*shape"], following: Integer[np.ndarray, "*shape"]
    ) -> Int64[np.ndarray, "*shape"]:
        """Returns how often `following` came right after `previous`; 0: never.

        Cost: a sort of the given pairs, and a binary search for each, in the order of the entries on disk.
        """
        keys = pair_keys(previous, following)
        asked, places = np.unique(keys, return_inverse=True)
        found = np.searchsorted(self.entries.keys, asked)
        counts = np.zeros(asked.shape, np.int64)
        inside = np.flatnonzero(found < len(self.entries.keys))
        met = inside[self.entries.keys[found[inside]] == asked[inside]]
        counts[met] = self.entries.counts[found[met]]
        return counts[places].reshape(keys.shape)


def pair_keys(previous: Integer[np.ndarray, "..."], following: Integer[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Returns one number per pair of ids in [0, 2^32); pairs are ordered by their first id, then by their second."""
    return np.asarray(previous).astype(np.uint64) << np.uint64(32) | np.asarray(following).astype(np.uint64)


def count_files(directory: Path, name: str) -> dict[str, tuple[Path, np.dtype]]:
    """Returns file and dtype of the arrays of counts, by key."""
    return {
        key: (directory / f"{name}.{key}.npy", np.dtype(dtype))
        for key, dtype in (("keys", "uint64"), ("counts", "int64"))
    }


def read_counts(directory: Path, name: str, n: int, sha256: Mapping[str, str]) -> SortedCounts:
    """Returns n entries, memory-mapped. Raises `ValueError` if a file is missing, `OSError` if it is damaged."""
    arrays = []
    for key, (file, dtype) in count_files(directory, name).items():
        arrays.append(open_array(file, dtype, n, remedy=AGAIN))
        require_digest(arrays[-1], sha256.get(key, ""), file, remedy=AGAIN)
    return SortedCounts(*arrays)
