"""How often each bigram stands in a stream of tokens: exact counts, on disk, for streams larger than memory.

Zoology (sec. 3) calls the end of a repeated bigram an associative recall hit only where training showed the bigram at
most 1,250 times. A directory of counts holds

    manifest.json         which tokens were counted, number of pairs and of distinct pairs, digests; written last
    bigrams.keys.npy      (n,) uint64, rising: the first token times 2^32, plus the second
    bigrams.counts.npy    (n,) int64, positive

The bytes depend on the stream alone: neither on workers or memory, nor on how often the count was interrupted.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt64

from jaxzoo.data.statistics.sorted_counts import Files, SortedCounts
from jaxzoo.data.tokens.token_shards import TokenDirectory

FORMAT = 1
"""Format of the directory; another number is refused."""
THRESHOLD = 1250
"""Zoology's, for 10 billion tokens of training."""


@dataclasses.dataclass(frozen=True)
class BigramCounts:
    """A directory of counts, memory-mapped.

    Args:
        path: what `count_bigrams` wrote.

    Raises:
        ValueError: there are no counts, or they are not finished, damaged, or of another format.
    """

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / "manifest.json").is_file():
            raise ValueError(
                f"{self.path} holds no bigram counts: manifest.json is missing; make them, or finish them, with "
                "python -m jaxzoo.data.bigrams"
            )
        try:
            manifest = json.loads((self.path / "manifest.json").read_text())
        except ValueError as error:
            raise ValueError(f"{self.path}/manifest.json must be JSON: {error}; count again") from error
        found = (manifest.get("kind"), manifest.get("format")) if isinstance(manifest, dict) else None
        if found != ("bigrams", FORMAT):
            raise ValueError(f"{self.path}/manifest.json: {found} must be {('bigrams', FORMAT)}; count again")
        object.__setattr__(self, "_manifest", manifest)
        object.__setattr__(self, "_entries", files_of(self.path).read())

    @property
    def manifest(self) -> dict[str, Any]:
        """`tokens` (a token directory's fingerprint), `split`, `total` (pairs), `distinct` (pairs), `sha256`."""
        return self._manifest  # type: ignore[attr-defined]

    @property
    def entries(self) -> SortedCounts:
        """All pairs that were met, as `pair_keys`, and how often."""
        return self._entries  # type: ignore[attr-defined]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the counted tokens."""
        return self.manifest["tokens"]

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
    return Files.of(directory, "bigrams", note="manifest.json")
