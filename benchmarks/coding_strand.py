"""A classification benchmark of real bases: the strand of a bacterial gene.

`python -m benchmarks.coding_strand --fasta GENOME.fna.gz --out corpora/coding_strand` writes train.csv and test.csv for
`jaxzoo classify`. No annotation is needed: nearly every open reading frame of at least 300 codons in a
bacterial genome is a gene, as random bases have a stop in every 21 codons on average. Of overlapping frames the longest
counts. A row is a window within a frame, read on the forward strand; the label is the frame's strand. The last fifth of
the genome is the test split. No frame spans two sequences of the file, or a gap of an assembly.
"""

import csv
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from jaxzoo.data.corpus.fasta import DOCUMENT_BASES, FastaLayout, read_bases
from jaxzoo.data.tokenizer import DNATokenizer, reverse_complement

_FRAME = re.compile("(?=(ATG(?:(?!TAA|TAG|TGA)[ACGT]{3})*(?:TAA|TAG|TGA)))")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Files that are written."""

    fasta: Path
    """Genome of a bacterium."""
    out: Path
    """Directory of train.csv and test.csv."""
    length: int = 255
    """Bases of a row."""
    codons: int = 300
    """Fewest codons of a frame."""


class Frame(NamedTuple):
    """Open reading frame, in places of the forward strand."""

    start: int
    end: int
    strand: str


def main(argv: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, args=argv)
    text = genome(options.fasta)
    frames = longest_frames(text, 3 * options.codons)
    options.out.mkdir(parents=True, exist_ok=True)
    border = len(text) * 4 // 5
    rng = np.random.default_rng(0)
    for split, chosen in (
        ("train", [frame for frame in frames if frame.end <= border]),
        ("test", [frame for frame in frames if frame.start >= border]),
    ):
        rows = {
            strand: [
                text[start : start + options.length]
                for frame in chosen
                if frame.strand == strand
                for start in range(frame.start, frame.end - options.length, options.length)
            ]
            for strand in "+-"
        }
        n = min(map(len, rows.values()))
        kept = [(row, strand) for strand, found in rows.items() for row in rng.permutation(found)[:n]]
        with (options.out / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("sequence", "label"), *kept])
        print(f"{split}: {len(kept):,} windows of {len(chosen):,} frames")


def genome(fasta: Path) -> str:
    """Returns all bases of a file, with an N, which ends a frame, between bases that are not adjacent."""
    parts, before = [], None
    for document in read_bases(fasta, FastaLayout({})):
        if before is not None and (before.subset != document.subset or len(before.text) < DOCUMENT_BASES):
            parts.append("N")
        parts.append(document.text)
        before = document
    return "".join(parts)


def longest_frames(text: str, shortest: int) -> list[Frame]:
    """Returns open reading frames of at least `shortest` bases on both strands; a frame that overlaps a longer one is
    dropped."""
    tokenizer = DNATokenizer()
    other = tokenizer.decode(reverse_complement(tokenizer.encode(text)))
    found = []
    for strand, bases in (("+", text), ("-", other)):
        ends: dict[int, int] = {}
        for match in _FRAME.finditer(bases):
            ends.setdefault(match.end(1), match.start(1))  # the first start codon of each stop
        for end, start in ends.items():
            if end - start >= shortest:
                found.append(
                    Frame(start, end, "+") if strand == "+" else Frame(len(text) - end, len(text) - start, "-")
                )
    taken = np.zeros(len(text), bool)
    frames = []
    for frame in sorted(found, key=lambda frame: frame.start - frame.end):
        if not taken[frame.start : frame.end].any():
            taken[frame.start : frame.end] = True
            frames.append(frame)
    return sorted(frames)


if __name__ == "__main__":
    main()
