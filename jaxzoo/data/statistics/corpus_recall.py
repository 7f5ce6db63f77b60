"""Directory of a corpus' recall statistics.

statistics.json                 result of `summarise`
table.md                        the same as a table
distances.png                   Figure 3 of Zoology's App. D
repeats_by_source.png           Figure 4
distances_by_source.png         Figure 5
manifest.json                   tokens, split, length, n, stop words; written last
"""

import hashlib
from collections.abc import Collection
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.data.pieces.share_out import Report
from jaxzoo.data.statistics.recall_figures import draw_distances, draw_distances_by_source, draw_repeats_by_source
from jaxzoo.data.statistics.recall_histograms import Cut, count_repeats, sum_repeats
from jaxzoo.data.statistics.recall_summary import summarise, table
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.json_files import read_json
from jaxzoo.whole_files import write_json, write_whole
from pallas_kernels.figure import save

FORMAT = 2


def make_recall_statistics(
    cut: Cut, out: Path, *, stop_words: Path | None = None, workers: int = 1, report: Report = lambda *_: None
) -> bool:
    """Counts the repeated n-grams of a split, and writes numbers and pictures.

    Args:
        cut: the sequences.
        out: directory of the results; unfinished work in it continues.
        stop_words: a text file; None: this package's.
        workers: processes, one per shard.
        report: as in `share_out`, of shards.

    Returns:
        False if the results existed already.

    Raises:
        ValueError: there are no such tokens, no sequence, or `out` holds something else.
    """
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
        "stop_words": _sha256("\n".join(sorted(words)).encode()),
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
        work.write_manifest({"table_sha256": _sha256(text.encode())})

    return work.make(count_repeats, arguments, finish, workers=workers, report=report)


def read_table(out: Path) -> str:
    """Returns `table.md` of a finished directory. Raises `ValueError` if it is damaged."""
    remedy = f"remove {out} and count again"
    manifest = read_json(out / "manifest.json", dict, checksum=True, remedy=remedy)
    data = (out / "table.md").read_bytes()
    if _sha256(data) != manifest.get("table_sha256"):
        raise ValueError(f"{out / 'table.md'} is damaged: it has another digest than was written; {remedy}")
    return data.decode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    """Marks tokens that are stop words, or have neither letter nor digit, or end a document.

    A token is compared by its text alone, without case and the space around it: a piece of a longer word counts as the
    word that it spells. A token that holds a part of a character is no punctuation.
    """
    result = np.zeros(tokenizer.vocab_size, bool)
    for i in range(tokenizer.vocab_size):
        text = tokenizer.decode(np.array([i])).strip().lower()
        result[i] = text in words or not any(c.isalnum() or c == "\ufffd" for c in text)
    result[tokenizer.end_of_text] = True
    return result
