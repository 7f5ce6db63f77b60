"""Exact counts of the bigrams in a stream of tokens, on disk, for streams larger than memory.

Zoology (sec. 3) calls the end of a repeated bigram an associative recall hit only where training showed the bigram at
most 1,250 times. A directory of counts holds

    manifest.json         fingerprint of the tokens, number of pairs and of distinct pairs, digests; written last
    bigrams.keys.npy      (n,) uint64, rising: the first token times 2^32, plus the second
    bigrams.counts.npy    (n,) int64, positive

The pairs of a shard are counted in sorted runs that fit into memory; the runs of all shards are merged. The bytes
depend on the stream alone: neither on workers or memory, nor on how often the count was interrupted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from jaxzoo.config.checked import Count
from jaxzoo.data.array_files import ArrayGroup, writing_arrays
from jaxzoo.data.resumable import Job, Report, ResumableDirectory, read_manifest
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.utils.checksums import add_checksum, read_checked
from jaxzoo.utils.whole_files import write_json

FORMAT = 2
THRESHOLD = 1250
"""Zoology's, for 10 billion tokens of training."""
AGAIN = "remove its directory and count again"
KEY_BYTES = 64
"""Bytes of memory per key counted at once: sorted keys, distinct keys, their indices and counts, twice."""
MERGE_BYTES = 72
"""Bytes of memory per entry summed at once."""

_TYPES = {"keys": "uint64", "counts": "int64"}


class BigramManifest(NamedTuple):
    kind: Literal["bigrams"]
    format: int
    tokens: str
    """Fingerprint of the token directory."""
    split: str
    total: Count
    distinct: Count
    sha256: dict[str, str]


class SortedCounts(NamedTuple):
    """Counts of distinct keys, in rising order."""

    keys: UInt64[np.ndarray, "n"]
    counts: Int64[np.ndarray, "n"]


class BigramCounts:
    """Memory-mapped directory of counts: `manifest`, `entries` (all occurring pairs, by `pair_keys`) and the
    `fingerprint` of the counted tokens. Raises `ValueError` if the counts are absent, unfinished, or of another size or
    format; `OSError` if a file is damaged."""

    def __init__(self, path: Path):
        self.path: Path = path
        command = "jaxzoo data-bigrams"
        self.manifest: BigramManifest = read_manifest(
            path, BigramManifest, FORMAT, "bigram counts", command=command, remedy=AGAIN
        )
        self.entries: SortedCounts = _read(path, "bigrams", self.manifest.distinct, self.manifest.sha256)
        self.fingerprint: str = self.manifest.tokens

    def check_made_from(self, tokens: TokenDirectory) -> None:
        """Raises `ValueError`, with both fingerprints, if other tokens were counted."""
        if tokens.fingerprint != self.fingerprint:
            raise ValueError(
                f"{self.path} counts the bigrams of tokens {self.fingerprint}, and {tokens.path} holds "
                f"{tokens.fingerprint}; count these with jaxzoo data-bigrams"
            )

    def counts(
        self, previous: Integer[np.ndarray, "*shape"], following: Integer[np.ndarray, "*shape"]
    ) -> Int64[np.ndarray, "*shape"]:
        """Returns how often `following` came right after `previous`. Cost: a sort of the given pairs, and a binary
        search for each, in the order of the entries on disk."""
        keys = pair_keys(previous, following)
        asked, places = np.unique(keys, return_inverse=True)
        found = np.searchsorted(self.entries.keys, asked)
        counts = np.zeros(asked.shape, np.int64)
        inside = np.flatnonzero(found < len(self.entries.keys))
        met = inside[self.entries.keys[found[inside]] == asked[inside]]
        counts[met] = self.entries.counts[found[met]]
        return counts[places].reshape(keys.shape)


def pair_keys(previous: Integer[np.ndarray, "..."], following: Integer[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Returns one number per pair of ids in [0, 2^32), ordered by first id, then second."""
    return np.asarray(previous).astype(np.uint64) << np.uint64(32) | np.asarray(following).astype(np.uint64)


def count_bigrams(
    data: Path,
    out: Path,
    *,
    split: str = "train",
    workers: int = 1,
    memory: int = 2**30,
    report: Report = lambda *_: None,
) -> bool:
    """Counts all pairs of adjacent tokens in a split, whose documents are joined by their end-of-text tokens.

    The last token of a shard and the first of the next are a pair, too: a split of t tokens has t - 1 pairs. Unfinished
    work in the directory `out` continues.

    Args:
        data: a token directory.
        workers: number of processes, each for one shard at a time.
        memory: bytes of arrays per process, without the operating system's pages of mapped files.
        report: receives name, number done and number of all: of shards, then ("merge") of summed entries.

    Returns False if the counts existed already. Raises `ValueError` if there are no such tokens, or `out` holds
    something else. Cost: each pair is sorted once among the `memory / 64` that fit, and each distinct pair of these
    summed once.
    """
    tokens = TokenDirectory(data)
    tokens.shards(split)
    work = ResumableDirectory(out, {"kind": "bigrams", "format": FORMAT, "tokens": tokens.fingerprint, "split": split})
    arguments = {name: (data, split, i, memory) for i, name in enumerate(tokens.split(split).shards)}

    def finish() -> None:
        runs = [run for name in arguments for run in _read_runs(work.note(name))]
        n_entries = sum(len(run.keys) for run in runs)
        total = 0

        def summed() -> Iterator[SortedCounts]:
            nonlocal total
            for block in merge(runs, memory, lambda n: report("merge", n, n_entries)):
                total += int(block.counts.sum())
                yield block

        lengths, sha256 = _write(out, "bigrams", summed())
        work.write_manifest({"total": total, "distinct": sum(lengths), "sha256": sha256})

    return work.make(_count_shard, arguments, finish, workers=workers, report=report)


class _Note(NamedTuple):
    runs: list[Count]
    sha256: dict[str, str]


def _count_shard(data: Path, split: str, index: int, memory: int, job: Job) -> None:
    """Counts the pairs of a shard, and the pair of its last token and the first of the next shard."""
    shards = TokenDirectory(data).shards(split)
    tokens = shards[index].tokens
    after = shards[index + 1].tokens[:1] if index + 1 < len(shards) else tokens[:0]
    size = max(1, memory // KEY_BYTES)

    def runs() -> Iterator[SortedCounts]:
        for start in range(0, len(tokens) - 1 + len(after), size):
            following = tokens[start + 1 : start + 1 + size]
            if len(following) < size:
                following = np.concatenate([following, after])
            keys = pair_keys(tokens[start : start + len(following)], following)
            yield SortedCounts(*np.unique(keys, return_counts=True))

    lengths, sha256 = _write(job.note.parent, job.note.stem, runs())
    write_json(job.note, add_checksum(_Note(lengths, sha256)._asdict()))


def _write(directory: Path, name: str, blocks: Iterable[SortedCounts]) -> tuple[list[int], dict[str, str]]:
    """Writes blocks of counts, each array whole or not at all; returns the blocks' lengths and the digests."""
    lengths: list[int] = []
    with writing_arrays(directory, name, _TYPES) as arrays:
        for block in blocks:
            arrays["keys"].append(block.keys)
            arrays["counts"].append(block.counts)
            lengths.append(len(block.keys))
    return lengths, {key: writer.digest for key, writer in arrays.items()}


def _read(directory: Path, name: str, n: int, sha256: Mapping[str, str]) -> SortedCounts:
    """Returns n memory-mapped entries. Raises `ValueError` if a file is missing, `OSError` if it is damaged."""
    arrays = ArrayGroup(directory, name, {key: (kind, n) for key, kind in _TYPES.items()}, sha256, remedy=AGAIN)
    return SortedCounts(arrays["keys"], arrays["counts"])


def _read_runs(note: Path) -> Iterator[SortedCounts]:
    content = read_checked(note, _Note, remedy=AGAIN)
    entries = _read(note.parent, note.stem, sum(content.runs), content.sha256)
    start = 0
    for n in content.runs:
        yield SortedCounts(entries.keys[start : start + n], entries.counts[start : start + n])
        start += n


def merge(runs: Sequence[SortedCounts], memory: int, report: Callable[[int], None]) -> Iterator[SortedCounts]:
    """Yields the sums of several counts, block by block in the order of the keys. The range of keys is halved until its
    entries in all runs fit into memory; one key alone may need `MERGE_BYTES` times the number of runs. `report`
    receives the growing number of summed entries."""
    most = memory // MERGE_BYTES
    n_done = 0
    waiting = [(0, 2**64, [0] * len(runs), [len(run.keys) for run in runs])]
    while waiting:
        low, high, starts, ends = waiting.pop()
        n = sum(ends) - sum(starts)
        if n == 0:
            continue
        bounds = list(zip(runs, starts, ends, strict=True))
        if n > most and high - low > 1:
            middle = (low + high) // 2
            cuts = [start + int(np.searchsorted(run.keys[start:end], np.uint64(middle))) for run, start, end in bounds]
            waiting += [(middle, high, cuts, ends), (low, middle, starts, cuts)]
            continue
        keys = np.concatenate([run.keys[start:end] for run, start, end in bounds])
        counts = np.concatenate([run.counts[start:end] for run, start, end in bounds])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        counts = counts[order]
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        yield SortedCounts(keys[firsts], np.add.reduceat(counts, firsts))
        n_done += n
        report(n_done)
