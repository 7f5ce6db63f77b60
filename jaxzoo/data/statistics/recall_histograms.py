"""Histograms of repeated n-grams of a corpus, by source: distance to the last occurrence, repeats per sequence.

The documents of one subset, each with its end-of-text token, are joined in their order within a shard and cut into
sequences of equal length (Zoology App. D); the rest at the end of a shard is not used. So a sequence is of one source,
as in the paper, and may hold several documents: an n-gram of an earlier one of them counts as repeated, since it is in
the model's context.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt

from jaxzoo.data.pieces.array_files import ArrayGroup, writing_arrays
from jaxzoo.data.statistics.bigram_counts import AGAIN
from jaxzoo.data.statistics.repeats import repeat_distances
from jaxzoo.data.tokens.token_shards import Counts, TokenDirectory, TokenShard
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json

KINDS = ("all", "content")
"""All n-grams, those with an end-of-text token too; and those without stop words, punctuation and end-of-text."""

_BLOCK = 2**20
"""Tokens that are counted together."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Sequences of a split."""

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
    """Number of repeated n-grams by the distance to their last occurrence; 0 at distance 0."""
    sequences: Int64[np.ndarray, "... length+1"]
    """Number of sequences by their number of repeated n-grams."""


def count_repeats(cut: Cut, index: int, stop: Bool[np.ndarray, "vocab"], note: Path) -> None:
    """Counts the repeats in a shard, and writes an array of `_shape`, flat, and a note with its digest.

    Args:
        cut: the sequences.
        index: of the shard.
        stop: tokens that an n-gram of content does not hold.
        note: place of the note.
    """
    directory = TokenDirectory(cut.data)
    shard, subsets = directory.shards(cut.split)[index], sorted(directory.split(cut.split).subsets)
    counts = np.zeros(_shape(cut, len(subsets)), np.int64)
    step = max(1, _BLOCK // cut.length)
    for row, subset in enumerate(subsets):
        chosen = _chosen(directory, cut, index, subset)
        for start in range(0, len(chosen), step):
            tokens = _sequences(shard, subset, cut.length, chosen[start : start + step])
            for column, n in enumerate(cut.n):
                _add(counts[row, :, column], tokens, stop[tokens], n)
    with writing_arrays(note.parent, note.stem, {"counts": counts.dtype}) as arrays:
        arrays["counts"].append(counts.ravel())
    write_json(note, add_checksum({"counts": arrays["counts"].digest}))


def sum_repeats(cut: Cut, notes: Iterable[Path]) -> dict[str, Histograms]:
    """Returns the sums over all shards of every subset that has a sequence.

    By subset, in the order of their names; axes kind (of `KINDS`) and n before the histogram's own.
    """
    subsets = sorted(TokenDirectory(cut.data).split(cut.split).subsets)
    total = np.zeros(_shape(cut, len(subsets)), np.int64)
    for note in notes:
        digests = read_json(note, dict[str, str], checksum=True, remedy=AGAIN)
        part = ArrayGroup(note.parent, note.stem, {"counts": ("int64", total.size)}, digests, remedy=AGAIN)
        total += part["counts"].reshape(total.shape)
    return {
        subset: Histograms(each[:, :, 0, :-1], each[:, :, 1])
        for subset, each in zip(subsets, total, strict=True)
        if each[0, 0, 1].any()
    }


def _shape(cut: Cut, n_subsets: int) -> tuple[int, ...]:
    """Subset, kind, n, (distances, repeats of a sequence), and their values."""
    return n_subsets, len(KINDS), len(cut.n), 2, cut.length + 1


def _chosen(directory: TokenDirectory, cut: Cut, index: int, subset: str) -> Int64[np.ndarray, "k"]:
    """Returns the numbers of the chosen sequences of a subset in a shard: evenly spread over all shards."""
    notes = directory.split(cut.split).shards.values()
    available = [note.subsets.get(subset, Counts()).tokens // cut.length for note in notes]
    total, first = sum(available), sum(available[:index])
    wanted = total if cut.sequences is None else min(total, cut.sequences)
    chosen = np.arange(wanted) * total // max(wanted, 1)
    return chosen[(chosen >= first) & (chosen < first + available[index])] - first


def _sequences(
    shard: TokenShard, subset: str, length: int, numbers: Int64[np.ndarray, "k"]
) -> UInt[np.ndarray, "k length"]:
    """Returns sequences of a subset, by their numbers."""
    documents = np.flatnonzero(shard.subset_ids == shard.subsets.index(subset))
    ends = np.append(shard.starts[1:], len(shard.tokens))
    lengths = ends[documents] - shard.starts[documents]
    firsts = np.cumsum(lengths) - lengths  # of each document, among the tokens of the subset
    places = numbers[:, None] * length + np.arange(length)[None]
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
