"""Exact counts of the bigrams in a stream of tokens, on disk, for streams larger than memory.

Zoology (sec. 3) calls the end of a repeated bigram an associative recall hit only where training showed the bigram at
most 1,250 times. A directory of counts holds

    manifest.json         which tokens were counted, number of pairs and of distinct pairs, digests; written last
    bigrams.keys.npy      (n,) uint64, rising: the first token times 2^32, plus the second
    bigrams.counts.npy    (n,) int64, positive

The bytes depend on the stream alone: neither on workers or memory, nor on how often the count was interrupted.
"""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt64

from jaxzoo.checked import Count
from jaxzoo.data.statistics.sorted_counts import AGAIN, CountsNote, Files
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.json_files import read_json

FORMAT = 2
"""Format of the directory; another number is refused."""
THRESHOLD = 1250
"""Zoology's, for 10 billion tokens of training."""


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


class BigramCounts:
    """A directory of counts, memory-mapped.

    Attributes:
        manifest: content of `manifest.json`.
        entries: all pairs that were met, as `pair_keys`, and how often.
        fingerprint: fingerprint of the counted tokens.

    Args:
        path: what `count_bigrams` wrote.

    Raises:
        ValueError: there are no counts, or they are not finished, damaged, or of another format.
    """

    def __init__(self, path: Path):
        self.path, file = path, path / "manifest.json"
        if not file.is_file():
            raise ValueError(
                f"{path} holds no bigram counts: manifest.json is missing; make them, or finish them, with "
                "python -m jaxzoo.data.bigrams"
            )
        self.manifest = read_json(file, Manifest, checksum=True, remedy=AGAIN)
        if self.manifest.format != FORMAT:
            raise ValueError(f"{file}: format={self.manifest.format} must be {FORMAT}; {AGAIN}")
        self.entries = files_of(path).read(
            CountsNote(self.manifest.total, self.manifest.distinct, self.manifest.sha256)
        )
        self.fingerprint = self.manifest.tokens

    def check_made_from(self, tokens: TokenDirectory) -> None:
        """Refuses other tokens than those that were counted.

        Raises:
            ValueError: names both fingerprints.
        """
        if tokens.fingerprint != self.fingerprint:
            raise ValueError(
                f"{self.path} counts the bigrams of tokens {self.fingerprint}, and {tokens.path} holds "
                f"{tokens.fingerprint}; count these with python -m jaxzoo.data.bigrams"
            )

    def counts(
        self, previous: Integer[np.ndarray, "*shape"], following: Integer[np.ndarray, "*shape"]
    ) -> Int64[np.ndarray, "*shape"]:
        """How often `following` came right after `previous`; 0: never.

        Cost: a sort of the pairs asked for, and a binary search for each, in the order of the entries on disk.
        """
        keys = pair_keys(previous, following)
        asked, places = np.unique(keys, return_inverse=True)
        found = np.searchsorted(self.entries.keys, asked)
        counts = np.zeros(asked.shape, np.int64)
        inside = np.flatnonzero(found < len(self.entries.keys))
        met = inside[self.entries.keys[found[inside]] == asked[inside]]
        counts[met] = self.entries.counts[found[met]]
        return counts[places].reshape(keys.shape)

    def seen_at_most(
        self, previous: Integer[np.ndarray, "*shape"], following: Integer[np.ndarray, "*shape"], most: int = THRESHOLD
    ) -> Bool[np.ndarray, "*shape"]:
        """Whether each pair was met at most so often, or never."""
        return self.counts(previous, following) <= most


def pair_keys(previous: Integer[np.ndarray, "..."], following: Integer[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """One number for each pair of ids in [0, 2^32); pairs are ordered by their first id, then by their second."""
    return np.asarray(previous).astype(np.uint64) << np.uint64(32) | np.asarray(following).astype(np.uint64)


def files_of(directory: Path) -> Files:
    """Where a directory of counts holds them."""
    return Files.of(directory, "bigrams")
