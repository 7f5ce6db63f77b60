"""Configuration of a build: which files, split how, cut into which pieces."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from jaxzoo.checked import Checked, FractionBelowOne, PositiveInt
from jaxzoo.data.corpus.shards import FilePiece
from jaxzoo.data.corpus.sources import SOURCES, Fields, find_source_files

FORMAT = 1
"""Format of `build.json`; changes when the same request would give other bytes."""
MEGABYTE = 10**6
VALID_FRACTION = 0.01
"""Share of the documents, where no files are named for validation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildConfig(Checked):
    """Configuration of a build."""

    source: Literal["pile", "slimpajama", "text", "jsonl"]
    """Which kind of files: the Pile's, SlimPajama's, text (a file a document), or lines of JSON."""
    paths: str
    """Files to train on: a directory, file or glob."""
    valid_paths: str | None = None
    """Files to validate on; None: documents of `paths` by the hash of their text."""
    test_paths: str | None = None
    """Files to test on."""
    valid_fraction: FractionBelowOne | None = None
    """Share of documents that go to validation; None: 0.01 without `valid_paths`, else 0."""
    text_field: str | None = None
    """Source jsonl: where the text stands, keys joined by dots; None: `text`."""
    subset_field: str | None = None
    """Source jsonl: where the name of the subset stands; None: nowhere."""
    max_shard_mb: PositiveInt = 512
    """Text in a shard, in 10^6 bytes, after which the next one begins."""

    def __post_init__(self) -> None:
        for field in ("text_field", "subset_field"):
            given = getattr(self, field) is not None
            self.require(field, not given or self.source == "jsonl", "is for source jsonl alone", "leave it out")
        by_hash = self.valid_paths is None or not self.valid_fraction
        self.require("valid_fraction", by_hash, "must not be given with valid_paths", "leave one of the two out")

    @property
    def fields(self) -> Fields | None:
        """Where text and subset stand in a line."""
        if self.source != "jsonl":
            return SOURCES[self.source].fields
        return Fields(self.text_field or "text", self.subset_field or "")

    @property
    def hashed_fraction(self) -> float:
        """Share of the documents of `paths` that go to validation."""
        if self.valid_fraction is not None:
            return self.valid_fraction
        return VALID_FRACTION if self.valid_paths is None else 0.0


def find_inputs(config: BuildConfig) -> dict[str, dict[str, Path]]:
    """Name -> file of each split.

    Raises:
        ValueError: there is none, or one is of two splits.
        OSError: a directory cannot be listed.
    """
    given = {"train": config.paths, "valid": config.valid_paths, "test": config.test_paths}
    options = {"train": "--paths", "valid": "--valid-paths", "test": "--test-paths"}
    files = {
        split: find_source_files(config.source, path, option=options[split])
        for split, path in given.items()
        if path is not None
    }
    seen: dict[Path, str] = {}
    for split, found in files.items():
        for file in found.values():
            other = seen.setdefault(file.resolve(), split)
            if other != split:
                raise ValueError(f"{file} is in {options[other]} and in {options[split]}; a file is of one split")
    return files


def request(config: BuildConfig, files: Mapping[str, Mapping[str, Path]]) -> dict[str, Any]:
    """Everything that determines the bytes of the result, for `build.json`."""
    listings = {split: [[name, file.stat().st_size] for name, file in found.items()] for split, found in files.items()}
    return {
        "format": FORMAT,
        "source": config.source,
        "fields": config.fields._asdict() if config.fields else None,
        "valid_fraction": config.hashed_fraction,
        "max_shard_mb": config.max_shard_mb,
        "inputs": {
            split: {
                "files": len(listing),
                "bytes": sum(size for _, size in listing),
                "names_and_sizes": hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:12],
            }
            for split, listing in listings.items()
        },
    }


def pieces_of(config: BuildConfig, files: Mapping[str, Mapping[str, Path]], skip_bad: bool) -> Iterator[FilePiece]:
    """The files of every split, joined to pieces of about a shard's size."""
    limit = config.max_shard_mb * MEGABYTE
    for split, found in files.items():
        fraction = config.hashed_fraction if split == "train" else 0.0
        groups = _groups(list(found.values()), limit)
        for i, group in enumerate(groups):
            yield FilePiece(split, i, tuple(group), config.fields, fraction, limit, skip_bad)


def _groups(files: list[Path], limit: int) -> list[list[Path]]:
    """The files in their order, joined while their sizes, added up, stay within the limit."""
    groups: list[list[Path]] = []
    n_bytes = 0
    for file in files:
        size = file.stat().st_size
        if groups and n_bytes + size <= limit:
            groups[-1].append(file)
            n_bytes += size
        else:
            groups.append([file])
            n_bytes = size
    return groups
