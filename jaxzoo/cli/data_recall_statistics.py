"""`jaxzoo data-recall-statistics --data TOKENDIR --out DIR`: counts repeated n-grams of token shards."""

import dataclasses
from pathlib import Path

from jaxzoo.cli.runner import GOES_ON, command_line
from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.utils.progress import show_progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallStatisticsCommand(Checked):
    """Counts the n-grams that occurred earlier in their sequence, by the distance to their last occurrence and by
    source, fits power laws to the distances, and writes numbers, a table and three pictures (Zoology, Appendix D). The
    documents of one source are joined, within a shard, and cut into sequences. The same command continues one that was
    stopped."""

    data: Path
    """Token directory, as jaxzoo data-tokenize writes it."""
    out: Path
    """Directory of the results; need not exist."""
    split: str = "train"
    """Split to count."""
    length: PositiveInt = 2048
    """Tokens of a sequence."""
    n: tuple[PositiveInt, ...] = (2, 3)
    """Lengths of n-grams."""
    stop_words: Path | None = None
    """Text file, one word per line: n-grams with a token that is one of them, or punctuation, are left out where
    sources are compared. Default: English function words."""
    sequences: PositiveInt | None = None
    """Largest number of sequences of each source, evenly spread over the split; default: all."""
    workers: PositiveInt = 1
    """Processes; each counts one shard at a time."""

    def __post_init__(self) -> None:
        self.require("n", bool(self.n), "must name at least one length")


@command_line(interrupted=GOES_ON)
def main(command: RecallStatisticsCommand) -> None:
    from jaxzoo.data.statistics.corpus_recall import Cut, make_recall_statistics, read_table

    out = command.out.expanduser()
    cut = Cut(command.data.expanduser(), command.split, command.length, command.n, command.sequences)
    stop_words = command.stop_words and command.stop_words.expanduser()
    with show_progress("shards") as report:
        is_new = make_recall_statistics(cut, out, stop_words=stop_words, workers=command.workers, report=report)
    print(f"{read_table(out)}{'written' if is_new else 'was written before'}: {out}")
