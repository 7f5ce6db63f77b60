"""`python -m benchmarks.coding_strand`. Kills: a strand read in the wrong direction."""

import csv
import random

import pytest

from benchmarks import coding_strand

CODONS = [a + b + c for a in "ACGT" for b in "ACGT" for c in "ACGT" if a + b + c not in ("TAA", "TAG", "TGA")]


@pytest.mark.full
def test_frames_of_both_strands(tmp_path):
    """Kills: the other strand read forwards, frames off by one, a window outside of its frame, bases in both splits."""
    rng = random.Random(0)
    other = str.maketrans("ACGT", "TGCA")
    genes, text = [], ""
    for i in range(20):
        gene = "ATG" + "".join(rng.choices(CODONS, k=400)) + "TAA"
        text += "TAATTAATTAA" * 3
        genes.append((len(text), len(text) + len(gene), "+-"[i % 2]))
        text += gene if i % 2 == 0 else gene.translate(other)[::-1]
    (tmp_path / "x.fa").write_text(f">x\n{text}\n")
    found = {(frame.end, frame.strand) if frame.strand == "+" else (frame.start, "-") for frame in frames(text)}
    stops = {(end, strand) if strand == "+" else (start, strand) for start, end, strand in genes}
    assert len(found & stops) > 15  # a longer frame by chance may hide one
    coding_strand.main(["--fasta", str(tmp_path / "x.fa"), "--out", str(tmp_path), "--length", "90"])
    for split in ("train", "test"):
        with (tmp_path / f"{split}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert sum(row["label"] == "+" for row in rows) == sum(row["label"] == "-" for row in rows) > 5
        assert all(len(row["sequence"]) == 90 for row in rows)
        border = len(text) * 4 // 5
        assert all((text.index(row["sequence"]) < border) == (split == "train") for row in rows)


def frames(text):
    """Frames of at least 300 codons."""
    return coding_strand.longest_frames(text, 900)
