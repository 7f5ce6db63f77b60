"""Counts the bigrams of a stream of tokens that is larger than memory.

The pairs of a shard are counted in runs that fit into memory, each sorted by key. The runs of all shards are merged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt64

from jaxzoo.checked import Count
from jaxzoo.data.pieces.array_files import writing_array
from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.data.pieces.share_out import Report
from jaxzoo.data.statistics.bigram_counts import AGAIN, FORMAT, SortedCounts, count_files, pair_keys, read_counts
from jaxzoo.data.tokens.token_shards import TokenDirectory, shard_name
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json

KEY_BYTES = 64
"""Memory for each key that is counted at once: the sorted keys, the distinct ones, their places and counts, twice."""
MERGE_BYTES = 72
"""Memory for each entry that is summed at once."""


class _Note(NamedTuple):
    """Note of the runs of a shard."""

    runs: list[Count]
    """Number of entries of each."""
    sha256: dict[str, str]


def count_bigrams(
    data: Path,
    out: Path,
    *,
    split: str = "train",
    workers: int = 1,
    memory: int = 2**30,
    report: Report = lambda *_: None,
) -> bool:
    """Counts all pairs of neighbours in a split, whose documents are joined by their end-of-text tokens.

    The last token of a shard and the first of the next are a pair, too: a split of t tokens has t - 1 pairs.

    Args:
        data: a token directory.
        out: directory of the counts; unfinished work in it continues.
        split: name.
        workers: processes, one per shard.
        memory: bytes of arrays in each process, without the operating system's pages of mapped files.
        report: receives name, number done and number of all: of shards, then ("merge") of entries that are summed.

    Returns:
        False if the counts existed already.

    Raises:
        ValueError: there are no such tokens, or `out` holds something else.

    Cost: each pair is sorted once among the `memory / 64` that fit, and each distinct pair of these summed once.
    """
    tokens = TokenDirectory(data)
    plan = {"kind": "bigrams", "format": FORMAT, "tokens": tokens.fingerprint, "split": split}
    names = [shard_name(split, i) for i in range(len(tokens.shards(split)))]
    work = ResumableDirectory(out, plan)
    if work.is_finished():
        return False
    arguments = {name: (data, split, i, memory) for i, name in enumerate(names)}
    notes = work.make_parts(_count_shard, arguments, workers=workers, report=report)
    runs = [run for note in notes for run in _read_runs(note)]
    n_entries = sum(len(run.keys) for run in runs)
    total = 0

    def summed() -> Iterator[SortedCounts]:
        nonlocal total
        for block in merge(runs, memory, lambda n: report("merge", n, n_entries)):
            total += int(block.counts.sum())
            yield block

    lengths, sha256 = _write(out, "bigrams", summed())
    work.finish({"total": total, "distinct": sum(lengths), "sha256": sha256})
    return True


def _count_shard(data: Path, split: str, index: int, memory: int, note: Path) -> None:
    """Counts the pairs of a shard, and that of its last token with the first of the next shard."""
    shards = TokenDirectory(data).shards(split)
    tokens = shards[index].tokens
    after = shards[index + 1].tokens[:1] if index + 1 < len(shards) else tokens[:0]
    size = max(1, memory // KEY_BYTES)

    def runs() -> Iterator[SortedCounts]:
        for start in range(0, len(tokens) - 1 + len(after), size):
            following = tokens[start + 1 : start + 1 + size]
            if len(following) < size:
                following = np.concatenate([following, after])
            yield count_keys(pair_keys(tokens[start : start + len(following)], following))

    lengths, sha256 = _write(note.parent, note.stem, runs())
    write_json(note, add_checksum(_Note(lengths, sha256)._asdict()))


def _write(directory: Path, name: str, blocks: Iterable[SortedCounts]) -> tuple[list[int], dict[str, str]]:
    """Writes blocks of counts, each array whole or not at all; returns the blocks' lengths and the digests."""
    lengths: list[int] = []
    files = count_files(directory, name)
    with writing_array(*files["keys"]) as keys, writing_array(*files["counts"]) as counts:
        for block in blocks:
            keys.append(block.keys)
            counts.append(block.counts)
            lengths.append(len(block.keys))
    return lengths, {"keys": keys.digest, "counts": counts.digest}


def _read_runs(note: Path) -> Iterator[SortedCounts]:
    """Yields the runs of a shard, memory-mapped."""
    content = read_json(note, _Note, checksum=True, remedy=AGAIN)
    entries, start = read_counts(note.parent, note.stem, sum(content.runs), content.sha256), 0
    for n in content.runs:
        yield SortedCounts(entries.keys[start : start + n], entries.counts[start : start + n])
        start += n


def count_keys(keys: UInt64[np.ndarray, "n"]) -> SortedCounts:
    """Counts the keys, which it sorts in place."""
    keys.sort()
    starts = np.flatnonzero(np.concatenate([keys[:1] == keys[:1], keys[1:] != keys[:-1]]))
    return SortedCounts(keys[starts], np.diff(starts, append=len(keys)))


def merge(runs: Sequence[SortedCounts], memory: int, report: Callable[[int], None]) -> Iterator[SortedCounts]:
    """Yields the sums of several counts, block by block in the order of the keys.

    The range of keys is halved until its entries in all runs fit into memory; one key alone may need `MERGE_BYTES`
    times the number of runs. `report` receives the growing number of summed entries.
    """
    most, n_done = memory // MERGE_BYTES, 0
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
        keys, counts = keys[order], counts[order]
        firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        yield SortedCounts(keys[firsts], np.add.reduceat(counts, firsts))
        n_done += n
        report(n_done)
