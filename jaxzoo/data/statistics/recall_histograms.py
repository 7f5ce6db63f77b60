"""Repeated n-grams of a corpus: how far back they were last, and how many a sequence has, by source (Zoology App. D).

The documents of one subset, each with its end-of-text token, are joined in their order within a shard and cut into
sequences of equal length; what is left at the end of a shard is not used. So a sequence is of one source, as in the
paper, and may hold several documents: an n-gram that an earlier one of them has counts as repeated, since it is in the
model's context.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt

from jaxzoo.data.pieces.array_files import open_array, require_digest, writing_array
from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.data.pieces.share_out import Piece, share_out
from jaxzoo.data.statistics.repeats import repeat_distances
from jaxzoo.data.tokens.token_shards import Counts, TokenDirectory, TokenShard, shard_name
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json

KINDS = ("all", "content")
"""All n-grams, those with an end-of-text token too; and those without stop words, punctuation and end-of-text."""

_AGAIN = "remove its directory and count again"
_BLOCK = 2**20
"""Tokens that are looked at together."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a split is cut into sequences."""

    data: Path
    """Token directory."""
    split: str
    length: int
    """Tokens of a sequence."""
    n: tuple[int, ...]
    """Lengths of n-grams."""
    sequences: int | None = None
    """At most so many of each subset, evenly spread over the split; None: all."""


class Histograms(NamedTuple):
    """Histograms of one subset, kind and n; or of many, along leading axes."""

    distances: Int64[np.ndarray, "... length"]
    """Number of repeated n-grams that were last so many tokens earlier; 0 at distance 0."""
    sequences: Int64[np.ndarray, "... length+1"]
    """Number of sequences that have so many repeated n-grams."""


def count_repeats(
    cut: Cut,
    stop: Bool[np.ndarray, "vocab"],
    work: ResumableDirectory,
    *,
    workers: int,
    report: Callable[[str, int, int], None],
) -> dict[str, Histograms]:
    """Histograms of every subset that has a sequence.

    Args:
        cut: which sequences.
        stop: tokens that an n-gram of content does not hold.
        work: begun; what is done of it goes on.
        workers: processes, one a shard.
        report: gets name, number done and number of all shards.

    Returns:
        By subset, in the order of their names; axes kind (of `KINDS`) and n before the histogram's own.
    """
    tokens = TokenDirectory(cut.data)
    subsets = sorted(tokens.split(cut.split).subsets)
    shards, empty = tokens.split(cut.split).shards.values(), Counts(0, 0, 0)
    available = np.array([[note.subsets.get(s, empty).tokens // cut.length for s in subsets] for note in shards])
    pieces = []
    for i, chosen in enumerate(_share(available, cut.sequences)):
        note = work.parts / f"{shard_name(cut.split, i)}.json"
        pieces.append(Piece(note.stem, note, (cut, i, dict(zip(subsets, chosen, strict=True)), stop, note)))
    share_out(_count_shard, pieces, workers=workers, report=report, claims=work.claims)
    total = np.zeros(_shape(cut, len(subsets)), np.int64)
    for piece in pieces:
        file = piece.makes.with_suffix(".npy")
        part = open_array(file, "int64", total.size, remedy=_AGAIN)
        digest = read_json(piece.makes, dict[str, str], checksum=True, remedy=_AGAIN).get("sha256", "")
        require_digest(part, digest, file, remedy=_AGAIN)
        total += part.reshape(total.shape)
    return {
        subset: Histograms(each[:, :, 0, :-1], each[:, :, 1])
        for subset, each in zip(subsets, total, strict=True)
        if each[0, 0, 1].any()
    }


class _Chosen(NamedTuple):
    """Sequences `(first .. first + n - 1) * available // wanted - offset` of one subset in one shard."""

    first: int
    n: int
    available: int
    wanted: int
    offset: int

    def indices(self, start: int, stop: int) -> Int64[np.ndarray, "k"]:
        """The `start`-th to the `stop`-th, exclusive, of the sequences that are chosen here."""
        i = np.arange(self.first + start, self.first + min(stop, self.n))
        return i * self.available // self.wanted - self.offset


def _share(available: Integer[np.ndarray, "shards subsets"], most: int | None) -> Iterator[list[_Chosen]]:
    """Which sequences are taken, by shard and subset: at most `most` of a subset, evenly spread over all shards."""
    totals = available.sum(0).tolist()
    offsets = [0] * len(totals)
    for row in available.tolist():
        chosen = []
        for subset, (n, total) in enumerate(zip(row, totals, strict=True)):
            wanted, offset = total if most is None else min(total, most), offsets[subset]
            first, end = (-(-at * wanted // total) if total else 0 for at in (offset, offset + n))
            chosen.append(_Chosen(first, end - first, total, wanted, offset))
            offsets[subset] += n
        yield chosen


def _count_shard(cut: Cut, index: int, chosen: dict[str, _Chosen], stop: Bool[np.ndarray, "vocab"], note: Path) -> None:
    """Counts the repeats in a shard, and writes an array of `_shape`, flat, and a note with its digest."""
    shard = TokenDirectory(cut.data).shards(cut.split)[index]
    counts = np.zeros(_shape(cut, len(chosen)), np.int64)
    for row, (subset, sequences) in enumerate(chosen.items()):
        step = max(1, _BLOCK // cut.length)
        for start in range(0, sequences.n, step):
            tokens = _cut(shard, subset, cut.length, sequences.indices(start, start + step))
            for column, n in enumerate(cut.n):
                _add(counts[row, :, column], tokens, stop[tokens], n)
    with writing_array(note.with_suffix(".npy"), counts.dtype) as writer:
        writer.append(counts.ravel())
    write_json(note, add_checksum({"sha256": writer.digest}))


def _shape(cut: Cut, n_subsets: int) -> tuple[int, ...]:
    """Subset, kind, n, (distances, repeats of a sequence), and which of these."""
    return n_subsets, len(KINDS), len(cut.n), 2, cut.length + 1


def _cut(
    shard: TokenShard, subset: str, length: int, sequences: Int64[np.ndarray, "k"]
) -> UInt[np.ndarray, "k length"]:
    """Sequences of a subset, by their numbers."""
    documents = np.flatnonzero(shard.subset_ids == shard.subsets.index(subset))
    ends = np.append(shard.starts[1:], len(shard.tokens))
    lengths = ends[documents] - shard.starts[documents]
    firsts = np.cumsum(lengths) - lengths  # of each document, among the tokens of the subset
    places = sequences[:, None] * length + np.arange(length)[None]
    owner = np.searchsorted(firsts, places, side="right") - 1
    return shard.tokens[shard.starts[documents][owner] + places - firsts[owner]]


def _add(
    counts: Int64[np.ndarray, "kinds 2 length+1"],
    tokens: UInt[np.ndarray, "k length"],
    is_stop: Bool[np.ndarray, "k length"],
    n: int,
) -> None:
    """Adds the repeated n-grams of some sequences."""
    distances = repeat_distances(tokens, n)
    holds_stop = is_stop.copy()
    for back in range(1, n):
        holds_stop[:, back:] |= is_stop[:, :-back]
    size = counts.shape[-1]
    for kind, kept in enumerate((distances, np.where(holds_stop, 0, distances))):
        hits = kept > 0
        counts[kind, 0] += np.bincount(kept[hits], minlength=size)
        counts[kind, 1] += np.bincount(hits.sum(1), minlength=size)
