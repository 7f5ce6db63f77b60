"""Repeated n-grams of a corpus, by source: distance to the last occurrence, repeats per sequence.

The documents of one subset, each with its end-of-text token, are joined in their order within a shard and cut into
sequences of equal length (Zoology App. D); the rest at the end of a shard is not used. So a sequence is of one source,
as in the paper, and may hold several documents: an n-gram of an earlier one of them counts as repeated, since it is in
the model's context. The directory of the results:

    statistics.json                 result of `summarise`
    table.md                        the same as a table
    distances.png                   Figure 3 of Zoology's App. D
    repeats_by_source.png           Figure 4
    distances_by_source.png         Figure 5
    manifest.json                   tokens, split, length, n, stop words; written last
"""

import dataclasses
from collections.abc import Collection, Iterable
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, UInt

from jaxzoo.data.array_files import ArrayGroup, writing_arrays
from jaxzoo.data.resumable import Job, Report, ResumableDirectory
from jaxzoo.data.statistics.bigram_counts import AGAIN
from jaxzoo.data.statistics.recall_summary import (
    KINDS,
    Histograms,
    draw_distances,
    draw_distances_by_source,
    draw_repeats_by_source,
    summarise,
    table,
)
from jaxzoo.data.statistics.repeats import repeat_distances
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import Counts, TokenDirectory, TokenShard
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked, text_sha256
from jaxzoo.utils.figure import save
from jaxzoo.utils.whole_files import write_json, write_whole

FORMAT = 2

_BLOCK = 2**20
"""Tokens that are counted together."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Sequences of a split."""

    data: Path
    split: str
    length: int
    """Length of a sequence in tokens."""
    n: tuple[int, ...]
    """Lengths of n-grams."""
    sequences: int | None = None
    """Maximal number per subset, evenly spread over the split; None: all."""


def make_recall_statistics(
    cut: Cut, out: Path, *, stop_words: Path | None = None, workers: int = 1, report: Report = lambda *_: None
) -> bool:
    """Counts the repeated n-grams of a split; writes numbers and pictures to `out`, where unfinished work continues.
    `stop_words` is a text file; None: this package's. Returns False if the results existed already. Raises `ValueError`
    if there are no such tokens, no sequence, or `out` holds something else."""
    tokens = TokenDirectory(cut.data)
    tokens.shards(cut.split)
    if len(set(cut.n)) < len(cut.n) or max(cut.n) >= cut.length:
        raise ValueError(f"--n {' '.join(map(str, cut.n))} must be distinct and below --length {cut.length}")
    shards = tokens.split(cut.split).shards.values()
    most = max(each.tokens for note in shards for each in note.subsets.values())
    if most < cut.length:
        raise ValueError(
            f"--length {cut.length} must not be above {most}, the most tokens of one source in a shard of {cut.data}"
        )
    words = read_stop_words(stop_words)
    plan = {
        "kind": "recall statistics",
        "format": FORMAT,
        "tokens": tokens.fingerprint,
        "split": cut.split,
        "length": cut.length,
        "n": list(cut.n),
        "sequences": cut.sequences,
        "stop_words": text_sha256("\n".join(sorted(words))),
    }
    stop = stop_tokens(load_tokenizer(cut.data), words)
    work = ResumableDirectory(out, plan)
    arguments = {name: (cut, i, stop) for i, name in enumerate(tokens.split(cut.split).shards)}

    def finish() -> None:
        summary = summarise(sum_repeats(cut, map(work.note, arguments)), cut.n)
        text = table(summary, [name for name in tokens.split(cut.split).subsets if name not in summary])
        write_json(out / "statistics.json", summary)
        write_whole(out / "table.md", text)
        save(draw_distances(summary), out / "distances.png")
        save(draw_repeats_by_source(summary), out / "repeats_by_source.png")
        save(draw_distances_by_source(summary), out / "distances_by_source.png")
        work.write_manifest({"table_sha256": text_sha256(text)})

    return work.make(count_repeats, arguments, finish, workers=workers, report=report)


def read_table(out: Path) -> str:
    """Returns `table.md` of a finished directory. Raises `ValueError` if it is damaged."""
    remedy = f"remove {out} and count again"
    manifest = read_checked(out / "manifest.json", dict, remedy=remedy)
    table = out / "table.md"
    if file_sha256(table) != manifest.get("table_sha256"):
        raise ValueError(f"{table} is damaged: it has another digest than was written; {remedy}")
    return table.read_text(encoding="utf-8")


def read_stop_words(path: Path | None = None) -> frozenset[str]:
    """Reads the words of a text file (None: this package's), one per line, lower-cased; # begins a comment line."""
    file = resources.files("jaxzoo.data.statistics") / "stop_words.txt" if path is None else path
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8 text: {error}") from error
    words = (line.strip().lower() for line in text.splitlines())
    return frozenset(word for word in words if word and not word.startswith("#"))


def stop_tokens(tokenizer: Tokenizer, words: Collection[str]) -> Bool[np.ndarray, "vocab"]:
    """Marks tokens that are stop words, have neither letter nor digit, or end a document. Only a token's own text
    counts, without case and surrounding space: a piece of a longer word counts as the word that it spells. A token with
    part of a character is no punctuation."""
    result = np.zeros(tokenizer.vocab_size, bool)
    for i in range(tokenizer.vocab_size):
        text = tokenizer.decode(np.array([i])).strip().lower()
        result[i] = text in words or not any(c.isalnum() or c == "\ufffd" for c in text)
    result[tokenizer.end_of_text] = True
    return result


def count_repeats(cut: Cut, index: int, stop: Bool[np.ndarray, "vocab"], job: Job) -> None:
    """Counts the repeats in a shard; an n-gram of content holds no token of `stop`. Writes a flat array of `_shape`,
    and a note with its digest."""
    directory = TokenDirectory(cut.data)
    split = directory.split(cut.split)
    shard = directory.shards(cut.split)[index]
    subsets = sorted(split.subsets)
    counts = np.zeros(_shape(cut, len(subsets)), np.int64)
    step = max(1, _BLOCK // cut.length)
    for row, subset in enumerate(subsets):
        # Indices of this shard's sequences among the evenly spread sample of all shards.
        available = [note.subsets.get(subset, Counts()).tokens // cut.length for note in split.shards.values()]
        total = sum(available)
        first = sum(available[:index])
        wanted = total if cut.sequences is None else min(total, cut.sequences)
        spread = np.arange(wanted) * total // max(wanted, 1)
        chosen = spread[(spread >= first) & (spread < first + available[index])] - first
        for start in range(0, len(chosen), step):
            tokens = _sequences(shard, subset, cut.length, chosen[start : start + step])
            for column, n in enumerate(cut.n):
                _add(counts[row, :, column], tokens, stop[tokens], n)
    with writing_arrays(job.note.parent, job.note.stem, {"counts": counts.dtype}) as arrays:
        arrays["counts"].append(counts.ravel())
    write_json(job.note, add_checksum({"counts": arrays["counts"].digest}))


def sum_repeats(cut: Cut, notes: Iterable[Path]) -> dict[str, Histograms]:
    """Returns the sums over all shards by subset, without empty subsets; axes kind (of `KINDS`) and n precede the
    histogram's."""
    subsets = sorted(TokenDirectory(cut.data).split(cut.split).subsets)
    total = np.zeros(_shape(cut, len(subsets)), np.int64)
    for note in notes:
        digests = read_checked(note, dict[str, str], remedy=AGAIN)
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


def _sequences(
    shard: TokenShard, subset: str, length: int, numbers: Int64[np.ndarray, "k"]
) -> UInt[np.ndarray, "k length"]:
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
