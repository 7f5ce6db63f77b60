"""Configuration of a build."""

import dataclasses
from pathlib import Path
from typing import Literal

from jaxzoo.checked import Checked, FractionBelowOne, PositiveInt
from jaxzoo.data.corpus.fasta import FastaLayout, read_layout
from jaxzoo.data.corpus.sources import SOURCES, Fields, LabelledLayout, Layout

VALID_FRACTION = 0.01
"""Share of the documents, where no files are named for validation."""
OPEN = ("jsonl", "parquet")
"""Sources whose fields the user names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildConfig(Checked):
    """Configuration of a build."""

    source: Literal["pile", "slimpajama", "text", "jsonl", "parquet", "fasta", "labelled"]
    """Kind of files: the Pile's, SlimPajama's, text (one document per file), lines of JSON, rows of parquet or Arrow
    (a folder of Hugging Face datasets), FASTA, or sequences with a class each (a folder of GenomicBenchmarks)."""
    paths: str
    """Files to train on: a directory, file or glob; source labelled: the directory of all splits."""
    valid_paths: str | None = None
    """Files to validate on; None: documents of `paths` by the hash of their text."""
    test_paths: str | None = None
    """Files to test on."""
    valid_fraction: FractionBelowOne | None = None
    """Share of documents that go to validation; None: 0.01 without `valid_paths`, else 0."""
    text_field: str | None = None
    """Source jsonl or parquet: field of the text, keys joined by dots; None: `text`."""
    subset_field: str | None = None
    """Source jsonl or parquet: field of the subset's name; None: no subsets."""
    valid_regions: str = ""
    """Source fasta: sequences, or parts of them, to validate on, such as chr8,chr9:1-5000000."""
    test_regions: str = ""
    """Source fasta: likewise to test on."""
    intervals: Path | None = None
    """Source fasta: BED file of intervals with their split in column 4, such as HyenaDNA's; other bases are left
    out."""
    max_shard_mb: PositiveInt = 512
    """Text per shard, in 10^6 bytes, after which the next shard begins."""

    def __post_init__(self) -> None:
        for field in ("text_field", "subset_field"):
            given = getattr(self, field) is not None
            self.require(field, not given or self.source in OPEN, "is for source jsonl or parquet", "leave it out")
        for field in ("valid_regions", "test_regions", "intervals"):
            allowed = not getattr(self, field) or self.source == "fasta"
            self.require(field, allowed, "is for source fasta alone", "leave it out")
        fields = self.fields
        if isinstance(fields, LabelledLayout) or (isinstance(fields, FastaLayout) and fields.intervals):
            rule = "must not be given where folders, regions or intervals say the splits"
            for field in ("valid_paths", "test_paths", "valid_fraction"):
                self.require(field, getattr(self, field) is None, rule, "leave one of the two out")
        alone = self.intervals is None or not (self.valid_regions or self.test_regions)
        self.require("intervals", alone, "must not be given with regions", "leave one of the two out")
        by_hash = self.valid_paths is None or not self.valid_fraction
        self.require("valid_fraction", by_hash, "must not be given with valid_paths", "leave one of the two out")

    @property
    def fields(self) -> Layout:
        """Where text and subset stand in a line, or which bases belong to which split."""
        if self.source == "fasta":
            return read_layout(
                valid_regions=self.valid_regions, test_regions=self.test_regions, intervals=self.intervals
            )
        if self.source not in OPEN:
            return SOURCES[self.source].fields
        return Fields(self.text_field or "text", self.subset_field or "")

    @property
    def hashed_fraction(self) -> float:
        """Share of the documents of `paths` that go to validation."""
        if self.valid_fraction is not None:
            return self.valid_fraction
        return VALID_FRACTION if self.valid_paths is None and self.source != "labelled" else 0.0
