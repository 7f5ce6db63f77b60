"""`python -m jaxzoo.data.bigrams --data TOKENDIR --out DIR`: how often each bigram stands in the training text."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.checked import Checked, PositiveInt
from jaxzoo.cli.data_progress import PieceProgress
from jaxzoo.cli.flags import parse_flags
from jaxzoo.cli.runner import run

PROGRAM = "python -m jaxzoo.data.bigrams"

DESCRIPTION = """Counts every pair of neighbouring tokens of a split, whose documents are joined by their end-of-text
tokens, and writes the counts sorted by pair. A count that was stopped goes on where it was with the same
command. Answers, for recall slices, whether a bigram was rare in training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """The flags."""

    data: Path
    """Token directory, as python -m jaxzoo.data.tokenize writes it."""
    out: Path
    """Where the counts go; need not exist."""
    split: str = "train"
    """Which split."""
    workers: PositiveInt = 1
    """Processes; each counts one shard at a time."""
    memory_mb: PositiveInt = 1024
    """Memory of each process, in MiB, plus some 60 MiB for Python itself; at the end, of the process that sums."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(
        _count,
        argv,
        interrupted="interrupted; the same command goes on from here",
        out_of_memory="out of memory; try a smaller --memory-mb or fewer --workers",
    )


def _count(argv: Sequence[str]) -> None:
    known = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Command)]
    command = parse_flags(Command, argv, prog=PROGRAM, known=known, description=DESCRIPTION)

    from jaxzoo.data.statistics.bigram_counts import BigramCounts
    from jaxzoo.data.statistics.count_bigrams import count_bigrams

    shards, entries = PieceProgress("shards"), PieceProgress("entries")
    out = command.out.expanduser()
    is_new = count_bigrams(
        command.data.expanduser(),
        out,
        split=command.split,
        workers=command.workers,
        memory=command.memory_mb * 2**20,
        report=lambda name, done, total: (entries if name == "merge" else shards)(name, done, total),
    )
    manifest = BigramCounts(out).manifest
    print(f"{manifest.total:,} pairs, {manifest.distinct:,} distinct{'' if is_new else '; counted before'}: {out}")
