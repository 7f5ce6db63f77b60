"""Parallel, resumable build of a tensorflow-datasets directory of array_record shards from source files.

    OUT/build.json                              the request; another request is refused
    OUT/work                                    shards and notes of an unfinished build
    OUT/the_pile/1.0.0/dataset_info.json        with features.json and metadata.json: counts by subset, skipped input
    OUT/the_pile/1.0.0/the_pile-train.array_record-00000-of-00012

The files of a split are grouped, in order, into pieces of about a shard's size; a larger file is a piece by itself.
Workers share the pieces. The bytes of the result depend only on the inputs and the request.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxzoo.config.checked import Checked, FractionBelowOne, PositiveInt
from jaxzoo.data.corpus.built import check_metadata
from jaxzoo.data.corpus.documents import SOURCES, DocumentFields, Layout, Skipped, find_source_files, read_documents
from jaxzoo.data.corpus.fasta import FastaLayout, read_layout
from jaxzoo.data.corpus.lines import COMPRESSED
from jaxzoo.data.corpus.shards import VERSION, FilePiece, TextCounts, finish, read_note, write_piece
from jaxzoo.data.resumable import ResumableDirectory
from jaxzoo.utils.checksums import text_sha256
from jaxzoo.utils.extras import need

FORMAT = 1
"""Format version of `build.json`; increased when the same request would give other bytes."""
COMPRESSED_FACTOR = 2.0
"""Upper bound of bytes of shards per byte of compressed input: shards compress each document separately."""
MEGABYTE = 10**6
VALID_FRACTION = 0.01
"""Share of the documents for validation if no files are named for it."""
OPEN = ("jsonl", "parquet")


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
    """Source fasta: sequences or parts to test on."""
    intervals: Path | None = None
    """Source fasta: BED file of intervals with their split in column 4, such as HyenaDNA's; other bases are left
    out."""
    max_shard_mb: PositiveInt = 512
    """Size of the text per shard, in 10^6 bytes."""

    def __post_init__(self) -> None:
        for field in ("text_field", "subset_field"):
            given = getattr(self, field) is not None
            self.require(field, not given or self.source in OPEN, "is for source jsonl or parquet", "leave it out")
        for field in ("valid_regions", "test_regions", "intervals"):
            allowed = not getattr(self, field) or self.source == "fasta"
            self.require(field, allowed, "is only for source fasta", "leave it out")
        fields = self.fields
        if self.source == "labelled" or (isinstance(fields, FastaLayout) and fields.intervals):
            rule = "must not be given if folders, regions or intervals define the splits"
            for field in ("valid_paths", "test_paths", "valid_fraction"):
                self.require(field, getattr(self, field) is None, rule, "leave one of the two out")
        alone = self.intervals is None or not (self.valid_regions or self.test_regions)
        self.require("intervals", alone, "must not be given with regions", "leave one of the two out")
        by_hash = self.valid_paths is None or not self.valid_fraction
        self.require("valid_fraction", by_hash, "must not be given with valid_paths", "leave one of the two out")

    @property
    def fields(self) -> Layout:
        """Fields of text and subset in a line, or splits of bases."""
        if self.source == "fasta":
            return read_layout(
                valid_regions=self.valid_regions, test_regions=self.test_regions, intervals=self.intervals
            )
        if self.source not in OPEN:
            return SOURCES[self.source].fields
        return DocumentFields(self.text_field or "text", self.subset_field or "")

    @property
    def hashed_fraction(self) -> float:
        """Share of the documents of `paths` for validation."""
        if self.valid_fraction is not None:
            return self.valid_fraction
        return VALID_FRACTION if self.valid_paths is None and self.source != "labelled" else 0.0


class BuildProgress(NamedTuple):
    documents: int
    bytes: int
    files: int
    """Input files of finished pieces."""


class Built(NamedTuple):
    directory: Path
    """Directory for `tensorflow_datasets.builder_from_directory`."""
    subsets: dict[str, dict[str, dict[str, int]]]
    """`documents` and `bytes` of text, by split and subset."""
    skipped: Skipped
    is_new: bool
    """Whether this call made any part of the build."""

    def total(self, split: str, what: str) -> int:
        """`documents` or `bytes` of a split."""
        return sum(counts[what] for counts in self.subsets.get(split, {}).values())


class Build:
    """Build in a directory. Finds the inputs and refuses unusable ones before anything is written. Raises `ValueError`
    if there is no input, or if `out` holds something else, with the first difference."""

    def __init__(self, config: BuildConfig, out: Path):
        for library in ("tensorflow_datasets", "array_record", "zstandard"):
            need(library, "building a corpus")
        self.config: BuildConfig = config
        plan, self._files = _inputs(config)
        self._directory = out / SOURCES[config.source].dataset / VERSION
        result = (self._directory / "dataset_info.json").relative_to(out)
        self._work = ResumableDirectory(out, plan, "build.json", "work/notes", str(result), temporary=("work",))

    @property
    def n_files(self) -> int:
        return sum(map(len, self._files.values()))

    @property
    def is_finished(self) -> bool:
        return self._work.is_finished

    def check_disk(self) -> None:
        """Raises `ValueError` if the disk has too little space for the rest of the build: `COMPRESSED_FACTOR` times the
        size of compressed inputs, and the size of others."""
        out = self._work.path
        needed = 0.0
        for file in (file for files in self._files.values() for file in files):
            needed += file.stat().st_size * (COMPRESSED_FACTOR if file.suffix in (*COMPRESSED, ".parquet") else 1)
        for file in (out / "work").rglob("*.array_record"):
            with contextlib.suppress(FileNotFoundError):  # renamed by another command
                needed -= file.stat().st_size
        free = shutil.disk_usage(next(p for p in (out, *out.absolute().parents) if p.exists())).free
        if needed > free:
            raise ValueError(
                f"--out {out}: about {needed / 1e9:,.1f} GB are needed ({COMPRESSED_FACTOR:g} times the size of "
                f"compressed inputs, the size of others) and {free / 1e9:,.1f} GB are free; free some, choose another "
                "place, or try with --allow-low-disk"
            )

    def progress(self) -> BuildProgress:
        """Returns the progress of all commands that share the build."""
        total = TextCounts()
        files = 0
        for name, piece in self._pieces(skip_bad=False):
            with contextlib.suppress(FileNotFoundError):  # unfinished, or another command has ended the build
                total += read_note(self._work.note(name)).total
                files += len(piece.files)
        for told in self._work.queue().progress().values():
            total += TextCounts(told.get("documents", 0), told.get("bytes", 0))
        return BuildProgress(total.documents, total.bytes, files)

    def run(self, *, workers: int = 1, skip_bad: bool = False) -> Built:
        """Makes the missing parts; several such calls, on machines that share the directory, share the work.

        With `skip_bad` damaged lines, and the rest of damaged files, are counted and skipped. Raises `ValueError` if an
        input is damaged, or holds no document to train on.
        """
        pieces = dict(self._pieces(skip_bad))
        if not self.is_finished:
            for split in self._files:  # a wrong source is refused before anything is written
                first = pieces[f"{split}-00000"]
                next(read_documents(first.files, first.fields, Skipped(), skip_bad=skip_bad), None)
        notes = [self._work.note(name) for name in pieces]
        arguments = {name: (piece,) for name, piece in pieces.items()}
        is_new = self._work.make(write_piece, arguments, lambda: finish(notes, self._directory), workers=workers)
        found = check_metadata(self._directory)
        if not {"subsets", "skipped"} <= found.keys():
            what = f"{self._directory / 'metadata.json'} is missing, or lacks its counts"
            raise ValueError(f"{what}; remove {self._work.path} and build again")
        return Built(self._directory, found["subsets"], Skipped(**found["skipped"]), is_new)

    def _pieces(self, skip_bad: bool) -> Iterator[tuple[str, FilePiece]]:
        """Groups the files of every split, in order, into pieces of at most a shard's size."""
        limit = self.config.max_shard_mb * MEGABYTE
        fields = self.config.fields
        for split, found in self._files.items():
            groups: list[list[Path]] = []
            room = 0
            for file in found:
                size = file.stat().st_size
                if not groups or size > room:
                    groups.append([])
                    room = limit
                groups[-1].append(file)
                room -= size
            fraction = self.config.hashed_fraction if split == "train" else 0.0
            for i, group in enumerate(groups):
                yield f"{split}-{i:05d}", FilePiece(split, tuple(group), fields, fraction, limit, skip_bad)


def _inputs(config: BuildConfig) -> tuple[dict[str, Any], dict[str, list[Path]]]:
    """Returns everything that determines the bytes of the result, for `build.json`, and the files of each split. Raises
    `ValueError` if a requested split has no file, or a file is in two splits."""
    given = (
        ("train", "--paths", config.paths),
        ("valid", "--valid-paths", config.valid_paths),
        ("test", "--test-paths", config.test_paths),
    )
    files: dict[str, list[Path]] = {}
    inputs: dict[str, Any] = {}
    seen: dict[Path, str] = {}
    for split, option, path in given:
        if path is None:
            continue
        found = find_source_files(config.source, path, option=option)
        files[split] = list(found.values())
        sizes = [[name, file.stat().st_size] for name, file in found.items()]
        inputs[split] = {"files": len(sizes), "bytes": sum(n for _, n in sizes), "names_and_sizes": _digest(sizes)}
        for file in found.values():
            if (other := seen.setdefault(file.resolve(), option)) != option:
                raise ValueError(f"{file} is in {other} and in {option}; a file must be in one split")
    fields: Any = config.fields
    if isinstance(fields, FastaLayout):
        fields = {"splits": _digest(fields)}
    plan = {
        "format": FORMAT,
        "source": config.source,
        "fields": fields._asdict() if isinstance(fields, DocumentFields) else fields,
        "valid_fraction": config.hashed_fraction,
        "max_shard_mb": config.max_shard_mb,
        "inputs": inputs,
    }
    return plan, files


def _digest(value: Any) -> str:
    return text_sha256(json.dumps(value))[:12]
