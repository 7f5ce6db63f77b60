"""FASTA files as documents. Kills: coordinates that are off by one, damage read as a shorter genome."""

import gzip
import random
import re

import numpy as np
import pytest

from jaxzoo.data.corpus import fasta
from jaxzoo.data.corpus.fasta import FastaLayout, Interval, read_bases, read_layout
from jaxzoo.data.corpus.lines import DamagedFileError, TextDocument
from jaxzoo.data.tokenizer import DNATokenizer, reverse_complement


def sequences(seed, lengths):
    """Names and bases, with soft-masked parts, gaps, short runs of N and ambiguous letters."""
    rng = random.Random(seed)
    parts = ["ACGT", "acgt", "ACGTRYN", "N" * 30, "N" * 99, "N" * 100, "n" * 350]
    made = {}
    for i, length in enumerate(lengths):
        text = ""
        while len(text) < length:
            part = rng.choice(parts)
            text += "".join(rng.choices(part, k=rng.randint(1, 400))) if len(part) < 9 else part
        made[f"chr{i + 1}"] = text[:length]
    return made


def write(file, made, width=60, zipped=True):
    """Two gzip members, as bgzip makes several; or plain, with lines of any width."""
    text = "".join(
        f">{name} of a test\r\n" + "".join(f"{bases[i : i + width]}\n" for i in range(0, len(bases), width))
        for name, bases in made.items()
    ).encode()
    half = len(text) // 2
    file.write_bytes(gzip.compress(text[:half]) + gzip.compress(text[half:]) if zipped else text)


def expected(made, layout):
    """Splits, names and texts: all in memory, letter by letter."""
    found = []
    for name, bases in made.items():
        clean = "".join(c if c in "ACGT" else "N" for c in bases.upper())
        for start, end, split in layout.of(name):
            for run in re.split("N{100,}", clean[start:end]):
                for i in range(0, len(run), fasta.DOCUMENT_BASES):
                    named = split if layout.intervals else ""
                    found.append(TextDocument(run[i : i + fasta.DOCUMENT_BASES], name, named))
    return found


@pytest.mark.parametrize("width", [60, 10**6])
def test_documents(tmp_path, monkeypatch, width):
    """Kills: a document cut where a read ends, a gap that falls on a cut, an interval off by one, lower case lost."""
    monkeypatch.setattr(fasta, "DOCUMENT_BASES", 1000)
    monkeypatch.setattr(fasta, "PART_BYTES", 777)
    made = sequences(0, [9000, 1, 30_000, 4000])
    write(tmp_path / "x.fa.gz", made, width)
    write(tmp_path / "x.fa", made, width, zipped=False)
    parts = [Interval(5, 1500, "valid"), Interval(1500, 1501, "test"), Interval(2999, 8000, "valid")]
    for layout in (
        FastaLayout({}),
        FastaLayout({"chr1": parts, "chr3": [Interval(0, None, "test")]}),
        FastaLayout({"chr3": parts}, None),
    ):
        for name in ("x.fa.gz", "x.fa"):
            assert list(read_bases(tmp_path / name, layout)) == expected(made, layout)


def test_layouts(tmp_path):
    """Kills: regions that count from 0, overlaps that double bases, a base of two splits, a line of another form."""
    layout = read_layout(
        valid_regions="chr8,chr9:1-5,000,000".replace("5,000,000", "5000000"), test_regions="chr9:5000001-6000000"
    )
    assert layout.intervals["chr8"] == [Interval(0, None, "valid")]
    assert layout.of("chr9") == [
        Interval(0, 5_000_000, "valid"),
        Interval(5_000_000, 6_000_000, "test"),
        Interval(6_000_000, None, "train"),
    ]
    bed = tmp_path / "x.bed"
    bed.write_text("chr2 50 90 train\nchr2\t0\t60\ttrain\nchr2 90 95 validation\n")
    assert read_layout(intervals=bed) == FastaLayout(
        {"chr2": [Interval(0, 90, "train"), Interval(90, 95, "valid")]}, None
    )
    for text, message in (
        ("chr2 0 9 dev\n", "x.bed:1: must be NAME START END SPLIT"),
        ("chr2 9 9 train\n", "x.bed:1: START=9 must be below END=9"),
        ("chr2 0 9 train\nchr2 8 12 test\n", "chr2 from base 9 is in train and in test"),
    ):
        bed.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_layout(intervals=bed)
    for region in ("chr1:9-3", "chr1:0-3"):
        with pytest.raises(ValueError, match="must have 1 <= FIRST <= LAST"):
            read_layout(valid_regions=region)
    for region in ("chr9:1-5,000,000", "chr8,chr9:1-5,000"):
        with pytest.raises(ValueError, match="'chr9:1-5,000' must have no commas in numbers"):
            read_layout(valid_regions=region)
    assert set(read_layout(valid_regions="100,chr9:1-5000,10,1000").intervals) == {"100", "chr9", "10", "1000"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b">p\nMKVLA\n", "line 2: 'V'|line 2: 'L'"),
        (b"ACGT\n", "line 1: a FASTA file must begin with '>'"),
        (b"", "no sequence"),
        (b">\nACGT\n", "line 1: a sequence without a name"),
        (gzip.compress(b">a\n" + b"ACGT" * 9999)[:-20], "its gz data end early"),
        (gzip.compress(b">a\n")[:5], "its gz data end early"),
    ],
    ids=["protein", "headless", "empty", "nameless", "cut", "header"],  # gzip data hold the time
)
def test_damage(tmp_path, content, message):
    """Kills: a damaged file that is read as a short one."""
    file = tmp_path / ("x.fa.gz" if content.startswith(b"\x1f\x8b") else "x.fa")
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=message):
        list(read_bases(file, FastaLayout({})))


def test_tokenizer():
    """Kills: two bases swapped, the strand read the same way round, N or the end complemented."""
    tokenizer = DNATokenizer()
    ids = tokenizer.encode("ACGTNacgtn")
    np.testing.assert_array_equal(ids, [0, 1, 2, 3, 4] * 2)
    assert tokenizer.decode([*ids, 5, 2]) == "ACGTNACGTN<|endoftext|>G"
    assert tokenizer.to_bytes(np.array([0, 5, 3])) == b"AT"
    assert tokenizer.count_bytes(np.array([0, 5, 4])) == 2
    other = reverse_complement(tokenizer.encode("AACGN"))
    assert tokenizer.decode(other) == "NCGTT"
    np.testing.assert_array_equal(reverse_complement(np.array([5, 0], np.uint16)), [3, 5])
    with pytest.raises(ValueError, match="holds 'é', which must be one of"):
        tokenizer.encode("ACé")
