"""Counts of 64-bit keys on disk, sorted by key; many of them summed into one in bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64

from jaxzoo.checked import Count
from jaxzoo.data.pieces.array_files import open_array, require_digest, writing_array
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json

AGAIN = "remove its directory and count again"
"""Remedy for damaged counts."""
KEY_BYTES = 48
"""Memory for each key that is counted at once: sorted in place, then the distinct ones, their places and counts."""
MERGE_BYTES = 72
"""Memory for each entry that is summed at once."""


class SortedCounts(NamedTuple):
    """How often each key was met; entries in rising order of their keys, each key once."""

    keys: UInt64[np.ndarray, "n"]
    counts: Int64[np.ndarray, "n"]


def count_keys(keys: UInt64[np.ndarray, "n"]) -> SortedCounts:
    """Counts the keys, which it sorts in place."""
    keys.sort()
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if keys.size else np.zeros(0, np.int64)
    return SortedCounts(keys[starts], np.diff(starts, append=len(keys)))


def merge(
    parts: Sequence[SortedCounts], memory: int, report: Callable[[int], None] = lambda n: None
) -> Iterator[SortedCounts]:
    """The sums of several counts, piece by piece in the order of the keys.

    The range of keys is halved until what all parts have in it fits into memory.

    Args:
        parts: usually memory-mapped.
        memory: bytes; one key alone may need `MERGE_BYTES` times the number of parts, which are taken then.
        report: gets the number of entries of all parts that are summed, as it grows.
    """
    most, n_done = memory // MERGE_BYTES, 0
    starts, ends = [0] * len(parts), [len(part.keys) for part in parts]
    waiting = [(0, 2**64, starts, ends)]
    while waiting:
        low, high, starts, ends = waiting.pop()
        n = sum(ends) - sum(starts)
        if n == 0:
            continue
        if n <= most or high - low == 1:
            yield _sum([SortedCounts(p.keys[s:e], p.counts[s:e]) for p, s, e in zip(parts, starts, ends, strict=True)])
            n_done += n
            report(n_done)
            continue
        middle = (low + high) // 2
        cuts = [
            s + int(np.searchsorted(p.keys[s:e], np.uint64(middle)))
            for p, s, e in zip(parts, starts, ends, strict=True)
        ]
        waiting += [(middle, high, cuts, ends), (low, middle, starts, cuts)]


def _sum(parts: Sequence[SortedCounts]) -> SortedCounts:
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return SortedCounts(keys[starts], np.add.reduceat(counts, starts))


class CountsNote(NamedTuple):
    """Note of the files of counts."""

    total: Count
    """Sum of the counts."""
    distinct: Count
    """Number of keys."""
    sha256: dict[str, str]
    """Digests of `keys` and `counts`."""


class Files(NamedTuple):
    """Files of counts: two arrays, and a note that is written last."""

    keys: Path
    counts: Path
    note: Path

    @classmethod
    def of(cls, directory: Path, name: str) -> "Files":
        """Returns the files of this name in this directory."""
        return cls(directory / f"{name}.keys.npy", directory / f"{name}.counts.npy", directory / f"{name}.json")

    def read(self, note: CountsNote | None = None) -> SortedCounts:
        """Returns the counts, memory-mapped; `note` is read from its file if it is None.

        Raises:
            ValueError: a file is missing or damaged.
        """
        if note is None:
            note = read_json(self.note, CountsNote, checksum=True, remedy=AGAIN)
        arrays = []
        for file, key, dtype in ((self.keys, "keys", "uint64"), (self.counts, "counts", "int64")):
            array = open_array(file, dtype, note.distinct, remedy=AGAIN)
            require_digest(array, note.sha256.get(key, ""), file, remedy=AGAIN)
            arrays.append(array)
        return SortedCounts(*arrays)

    def write(self, blocks: Iterable[SortedCounts]) -> None:
        """Writes counts and the note."""
        write_json(self.note, add_checksum(self.write_arrays(blocks)._asdict()))

    def write_arrays(self, blocks: Iterable[SortedCounts]) -> CountsNote:
        """Writes counts that come in blocks, keys rising, each array whole or not at all; returns the note."""
        total = distinct = 0
        with (
            writing_array(self.keys, np.dtype(np.uint64)) as keys,
            writing_array(self.counts, np.dtype(np.int64)) as counts,
        ):
            for block in blocks:
                keys.append(block.keys)
                counts.append(block.counts)
                total += int(block.counts.sum())
                distinct += len(block.keys)
        return CountsNote(total, distinct, {"keys": keys.digest, "counts": counts.digest})

    def remove(self) -> None:
        """Removes the files, the note first."""
        for file in reversed(self):
            file.unlink(missing_ok=True)
