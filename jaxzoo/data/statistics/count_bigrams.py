"""Counts the bigrams of a stream of tokens that is larger than memory."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer, UInt, UInt64

from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.data.pieces.share_out import Piece, share_out
from jaxzoo.data.statistics.bigram_counts import FORMAT, files_of, pair_keys
from jaxzoo.data.statistics.sorted_counts import KEY_BYTES, Files, count_keys, merge
from jaxzoo.data.tokens.token_shards import TokenDirectory, shard_name

_BLOCK = 2**20


class Pairs(NamedTuple):
    """Some neighbours in a stream of tokens."""

    previous: Integer[np.ndarray, "n"]
    following: Integer[np.ndarray, "n"]


def count_pairs(pairs: Iterable[Pairs], files: Files, *, memory: int) -> None:
    """Counts the pairs of any stream, in bounded memory.

    Args:
        pairs: in arrays of any size.
        files: where the counts go, whole or not at all; unfinished work lies next to them, and a count that was killed
            starts again.
        memory: bytes, in addition to the arrays that `pairs` makes.

    Cost: each pair is sorted once among the `memory / 48` that fit, and each distinct pair of these summed once.
    """
    sorted_parts: list[Files] = []
    directory, name = files.note.parent, files.note.stem
    for i, keys in enumerate(_filled(pairs, max(1, memory // KEY_BYTES))):
        part = Files.of(directory, f"{name}.{i}")
        part.write([count_keys(keys)])
        sorted_parts.append(part)
    files.write(merge([part.read() for part in sorted_parts], memory))
    for part in sorted_parts:
        part.remove()


def count_bigrams(
    data: Path,
    out: Path,
    *,
    split: str = "train",
    workers: int = 1,
    memory: int = 2**30,
    report: Callable[[str, int, int], None] = lambda *progress: None,
) -> bool:
    """Counts all pairs of neighbours in a split, whose documents are joined by their end-of-text tokens.

    The last token of a shard and the first of the next are a pair, too: a split of t tokens has t - 1 pairs.

    Args:
        data: a token directory.
        out: where the counts go; unfinished work in it goes on.
        split: name.
        workers: processes, one a shard.
        memory: bytes of arrays in each process; the operating system's pages of mapped files are not included.
        report: gets what was done, how much of it, and of how much: shards, then entries of them that are summed.

    Returns:
        False where the counts had been there already.

    Raises:
        ValueError: there are no such tokens, or `out` holds something else.
        OSError: something cannot be read or written.
    """
    tokens = TokenDirectory(data)
    n_shards = len(tokens.shards(split))
    work = ResumableDirectory(out, counting_plan(tokens, split))
    with work.removed_if_refused():
        if work.begin():
            return False
        parts = [Files.of(work.parts, shard_name(split, i)) for i in range(n_shards)]
        pieces = [Piece(part.note.stem, part.note, (data, split, i, part, memory)) for i, part in enumerate(parts)]
        share_out(_count_shard, pieces, workers=workers, report=report, claims=work.claims)
    write_counts(work, parts, memory=memory, report=lambda n, of: report("merge", n, of))
    return True


def write_counts(
    work: ResumableDirectory,
    parts: Iterable[Files],
    *,
    memory: int,
    report: Callable[[int, int], None] = lambda *progress: None,
) -> None:
    """Sums the counts of parts of a stream into a directory of counts, and finishes it.

    Args:
        work: begun; its plan is `counting_plan`'s.
        parts: what `count_pairs` wrote, in `work.parts`.
        memory: bytes.
        report: gets the number of entries that are summed, and of all.
    """
    counts = [part.read() for part in parts]
    n_entries = sum(len(part.keys) for part in counts)
    blocks = merge(counts, memory, lambda n: report(n, n_entries))
    work.finish(files_of(work.path).write_arrays(blocks)._asdict())


def counting_plan(tokens: TokenDirectory, split: str) -> dict[str, Any]:
    """Description of the stream in a directory of counts."""
    return {"kind": "bigrams", "format": FORMAT, "tokens": tokens.fingerprint, "split": split}


def _count_shard(data: Path, split: str, index: int, files: Files, memory: int) -> None:
    """Counts the pairs of a shard, and that of its last token with the first of the next shard."""
    shards = TokenDirectory(data).shards(split)
    after = shards[index + 1].tokens[:1] if index + 1 < len(shards) else shards[index].tokens[:0]
    count_pairs(_pairs(shards[index].tokens, after), files, memory=memory)


def _pairs(tokens: UInt[np.ndarray, "t"], after: UInt[np.ndarray, "a"]) -> Iterator[Pairs]:
    """Neighbours in `tokens`, and its last with the first of `after`, if there is one."""
    for start in range(0, len(tokens) - 1, _BLOCK):
        block = tokens[start : start + _BLOCK + 1]
        yield Pairs(block[:-1], block[1:])
    if len(after):
        yield Pairs(tokens[-1:], after[:1])


def _filled(pairs: Iterable[Pairs], capacity: int) -> Iterator[UInt64[np.ndarray, "n"]]:
    """The keys of a stream of pairs, `capacity` at a time, in memory that the next ones are written into."""
    buffer, n = np.empty(capacity, np.uint64), 0
    for previous, following in pairs:
        taken = 0
        while taken < len(previous):
            room = min(capacity - n, len(previous) - taken, _BLOCK)
            buffer[n : n + room] = pair_keys(previous[taken : taken + room], following[taken : taken + room])
            n, taken = n + room, taken + room
            if n == capacity:
                yield buffer
                n = 0
    if n:
        yield buffer[:n]
