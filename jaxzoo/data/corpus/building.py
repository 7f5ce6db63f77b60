"""Build of source files into a tensorflow-datasets directory of array_record shards, in parallel, and restartable.

    OUT/build.json                              the request; another request is refused
    OUT/work                                    shards and notes of an unfinished build (`shards`)
    OUT/the_pile/1.0.0/dataset_info.json        with features.json and metadata.json: counts by subset, skipped input
    OUT/the_pile/1.0.0/the_pile-train.array_record-00000-of-00012

The files of a split are joined to pieces of about a shard's size in their order, a larger file being a piece of its
own; workers share the pieces. The bytes of the result depend on the inputs and the request alone.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.data.corpus.built import check_metadata
from jaxzoo.data.corpus.fasta import FastaLayout
from jaxzoo.data.corpus.lines import COMPRESSED
from jaxzoo.data.corpus.request import BuildConfig
from jaxzoo.data.corpus.shards import VERSION, FilePiece, finish, write_piece
from jaxzoo.data.corpus.sources import SOURCES, Fields, Skipped, find_source_files, read_documents
from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.extras import need
from jaxzoo.json_files import read_json

FORMAT = 1
"""Format of `build.json`; changes when the same request would give other bytes."""
COMPRESSED_FACTOR = 2.0
"""Bytes of shards per byte of compressed input, at most: shards compress each document by itself."""
MEGABYTE = 10**6


class Progress(NamedTuple):
    """Progress of a build."""

    documents: int
    bytes: int
    """Bytes of text."""
    files: int
    """Finished inputs."""


class Built(NamedTuple):
    """Finished data set."""

    directory: Path
    """Directory for `tensorflow_datasets.builder_from_directory`."""
    subsets: dict[str, dict[str, dict[str, int]]]
    """`documents` and `bytes` of text, by split and subset."""
    skipped: Skipped
    is_new: bool
    """Whether this call has made any of it."""

    def total(self, split: str, what: str) -> int:
        """`documents` or `bytes` of a split."""
        return sum(counts[what] for counts in self.subsets.get(split, {}).values())


class Build:
    """Build in a directory. Finds the inputs, and refuses what could not work, before anything is written.

    Raises `ValueError` if there is no input, or if `out` holds something else, with the first difference.
    """

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
        """Number of inputs."""
        return sum(map(len, self._files.values()))

    @property
    def is_finished(self) -> bool:
        """Whether the data set exists."""
        return self._work.is_finished

    def check_disk(self) -> None:
        """Raises `ValueError` if the disk has too little space for the rest of the build.

        It needs `COMPRESSED_FACTOR` times the size of compressed inputs, and the size of others.
        """
        out, needed = self._work.path, 0.0
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

    def progress(self) -> Progress:
        """Progress of all commands that share the build."""
        found = [Progress(0, 0, 0)]
        for file in (self._work.path / "work" / "progress").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):  # another command has ended the build
                found.append(read_json(file, Progress))
        return Progress(*map(sum, zip(*found, strict=True)))

    def run(self, *, workers: int = 1, skip_bad: bool = False) -> Built:
        """Makes the missing parts.

        Args:
            workers: processes; several such calls, on machines that share the directory, share the work.
            skip_bad: whether damaged lines, and the rest of damaged files, are counted and left out.

        Raises:
            ValueError: an input is damaged, or holds no document to train on.
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
        return Built(self._directory, found["subsets"], Skipped(**found["skipped"]), is_new)

    def _pieces(self, skip_bad: bool) -> Iterator[tuple[str, FilePiece]]:
        """Joins the files of every split, in their order, while their sizes add up to at most a shard's."""
        limit, fields = self.config.max_shard_mb * MEGABYTE, self.config.fields
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
    """Returns everything that determines the bytes of the result, for `build.json`, and the files of each split.

    Raises `ValueError` if a split that is asked for has no file, or a file is of two splits.
    """
    options = {"train": "--paths", "valid": "--valid-paths", "test": "--test-paths"}
    given = {"train": config.paths, "valid": config.valid_paths, "test": config.test_paths}
    files: dict[str, list[Path]] = {}
    inputs: dict[str, Any] = {}
    seen: dict[Path, str] = {}
    for split, path in given.items():
        if path is None:
            continue
        found = find_source_files(config.source, path, option=options[split])
        files[split] = list(found.values())
        sizes = [[name, file.stat().st_size] for name, file in found.items()]
        inputs[split] = {"files": len(sizes), "bytes": sum(n for _, n in sizes), "names_and_sizes": _digest(sizes)}
        for file in found.values():
            other = seen.setdefault(file.resolve(), split)
            if other != split:
                raise ValueError(f"{file} is in {options[other]} and in {options[split]}; a file is of one split")
    fields: Any = config.fields
    if isinstance(fields, FastaLayout):
        fields = {"splits": _digest(fields)}
    plan = {
        "format": FORMAT,
        "source": config.source,
        "fields": fields._asdict() if isinstance(fields, Fields) else fields,
        "valid_fraction": config.hashed_fraction,
        "max_shard_mb": config.max_shard_mb,
        "inputs": inputs,
    }
    return plan, files


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
