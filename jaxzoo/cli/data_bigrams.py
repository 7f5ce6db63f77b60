"""`jaxzoo data-bigrams --data TOKENDIR --out DIR`: counts bigrams of token shards."""

import dataclasses
from pathlib import Path

from jaxzoo.cli.runner import GOES_ON, command_line
from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.utils.progress import show_progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigramsCommand(Checked):
    """Counts every pair of neighbouring tokens of a split, whose documents are joined by their end-of-text tokens, and
    writes the counts sorted by pair. The same command continues a stopped count. Recall slices use the counts to
    tell rare bigrams from frequent ones."""

    data: Path
    """Token directory, as jaxzoo data-tokenize writes it."""
    out: Path
    """Directory of the counts; need not exist."""
    split: str = "train"
    """Split to count."""
    workers: PositiveInt = 1
    """Processes; each counts one shard at a time."""
    memory_mb: PositiveInt = 1024
    """Memory of arrays per process, in MiB; Python itself takes about 60 MiB more."""


@command_line(interrupted=GOES_ON, out_of_memory="out of memory; try a smaller --memory-mb or fewer --workers")
def main(command: BigramsCommand) -> None:
    from jaxzoo.data.statistics.bigram_counts import BigramCounts, count_bigrams

    out = command.out.expanduser()
    with show_progress("shards, or entries of them") as report:
        is_new = count_bigrams(
            command.data.expanduser(),
            out,
            split=command.split,
            workers=command.workers,
            memory=command.memory_mb * 2**20,
            report=report,
        )
    manifest = BigramCounts(out).manifest
    print(f"{manifest.total:,} pairs, {manifest.distinct:,} distinct{'' if is_new else '; counted before'}: {out}")
