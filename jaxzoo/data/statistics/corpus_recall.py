"""Makes the directory of a corpus' recall statistics.

statistics.json                 what `summarise` returns
table.md                        the same, to be read
distances.png                   Figure 3 of Zoology's App. D
repeats_by_source.png           Figure 4
distances_by_source.png         Figure 5
manifest.json                   tokens, split, length, n, stop words; written last
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.data.statistics.recall_figures import draw_distances, draw_distances_by_source, draw_repeats_by_source
from jaxzoo.data.statistics.recall_histograms import Cut, count_repeats
from jaxzoo.data.statistics.recall_summary import summarise, table
from jaxzoo.data.statistics.stop_words import read_stop_words, stop_tokens
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.whole_files import write_json, write_whole
from pallas_kernels.figure import save

FORMAT = 1


def make_recall_statistics(
    cut: Cut,
    out: Path,
    *,
    stop_words: Path | None = None,
    workers: int = 1,
    report: Callable[[str, int, int], None] = lambda *progress: None,
) -> bool:
    """Counts the repeated n-grams of a split, and writes numbers and pictures.

    Args:
        cut: which sequences.
        out: where to; unfinished work in it goes on.
        stop_words: a text file; None: this package's.
        workers: processes, one a shard.
        report: gets name, number done and number of all shards.

    Returns:
        False where all was there already.

    Raises:
        ValueError: there are no such tokens, no sequence, or `out` holds something else.
        OSError: something cannot be read or written.
    """
    tokens = TokenDirectory(cut.data)
    _check(cut, tokens)
    words = read_stop_words(stop_words)
    plan = {
        "format": FORMAT,
        "kind": "recall statistics",
        "tokens": tokens.fingerprint,
        "split": cut.split,
        "length": cut.length,
        "n": list(cut.n),
        "sequences": cut.sequences,
        "stop_words": hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest(),
    }
    stop = stop_tokens(load_tokenizer(cut.data), words)
    work = ResumableDirectory(out, plan)
    if work.begin():
        return False
    summary = summarise(count_repeats(cut, stop, work, workers=workers, report=report), cut.n)
    write_json(out / "statistics.json", summary)
    write_whole(out / "table.md", table(summary, [name for name in tokens.counts(cut.split) if name not in summary]))
    save(draw_distances(summary), out / "distances.png")
    save(draw_repeats_by_source(summary), out / "repeats_by_source.png")
    save(draw_distances_by_source(summary), out / "distances_by_source.png")
    work.finish({})
    return True


def _check(cut: Cut, tokens: TokenDirectory) -> None:
    """Refuses a cut that leaves nothing."""
    tokens.shards(cut.split)
    if len(set(cut.n)) < len(cut.n) or max(cut.n) >= cut.length:
        raise ValueError(f"--n {' '.join(map(str, cut.n))} must be distinct and below --length {cut.length}")
    shards = tokens.manifest["splits"][cut.split]["shards"].values()
    most = max(each["tokens"] for note in shards for each in note["subsets"].values())
    if most < cut.length:
        raise ValueError(
            f"--length {cut.length} must not be above {most}, the most tokens of one source in a shard of {cut.data}"
        )
