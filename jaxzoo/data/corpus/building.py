"""Build of source files into a tensorflow-datasets directory of array_record shards, in parallel, and restartable.

    OUT/build.json                              the request; another request is refused
    OUT/work                                    shards and notes of an unfinished build (`shards`)
    OUT/the_pile/1.0.0/dataset_info.json        with features.json and metadata.json: counts by subset, skipped input
    OUT/the_pile/1.0.0/the_pile-train.array_record-00000-of-00012

The files of a split are joined to pieces of about a shard's size in their order, a larger file being a piece of its
own; workers share the pieces. The bytes of the result depend on the inputs and the request alone.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxzoo.data.corpus.built import check_metadata
from jaxzoo.data.corpus.lines import COMPRESSED
from jaxzoo.data.corpus.request import MEGABYTE, BuildConfig, find_inputs, request
from jaxzoo.data.corpus.shards import VERSION, FilePiece, WorkDirectory, finish, write_piece
from jaxzoo.data.corpus.sources import SOURCES, Skipped, read_documents
from jaxzoo.data.pieces.resumable import begun, check_plan, remove_drafts
from jaxzoo.data.pieces.share_out import Piece, is_shared, share_out
from jaxzoo.extras import need
from jaxzoo.json_files import read_json

COMPRESSED_FACTOR = 2.0
"""Bytes of shards per byte of compressed input, at most: shards compress each document by itself."""
_PLAN = "build.json"


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
        self.out: Path = out
        self.files: dict[str, dict[str, Path]] = find_inputs(config)
        self.directory: Path = out / SOURCES[config.source].dataset / VERSION
        self.work: WorkDirectory = WorkDirectory(out / "work")
        self._request = request(config, self.files)
        check_plan(out, _PLAN, self._request)

    @property
    def n_files(self) -> int:
        """Number of inputs."""
        return sum(map(len, self.files.values()))

    @property
    def is_finished(self) -> bool:
        """Whether the data set exists."""
        return (self.directory / "dataset_info.json").is_file()

    def estimate(self) -> int:
        """Bytes of disk that the data set needs: `COMPRESSED_FACTOR` for compressed inputs, 1 for others."""
        total = 0.0
        for file in (file for files in self.files.values() for file in files.values()):
            total += file.stat().st_size * (COMPRESSED_FACTOR if file.suffix in (*COMPRESSED, ".parquet") else 1)
        return round(total)

    def check_disk(self) -> None:
        """Raises `ValueError` if the disk has too little space for the rest of the build."""
        place = next(p for p in (self.out, *self.out.absolute().parents) if p.exists())
        free, written = shutil.disk_usage(place).free, 0
        for file in self.work.path.rglob("*.array_record"):
            with contextlib.suppress(FileNotFoundError):  # renamed by another command
                written += file.stat().st_size
        needed = max(self.estimate() - written, 0)
        if needed > free:
            raise ValueError(
                f"--out {self.out}: about {needed / 1e9:,.1f} GB are needed ({COMPRESSED_FACTOR:g} times the size of "
                f"compressed inputs, the size of others) and {free / 1e9:,.1f} GB are free; free some, choose another "
                "place, or try with --allow-low-disk"
            )

    def progress(self) -> Progress:
        """Progress of all commands that share the build."""
        found = [Progress(0, 0, 0)]
        for file in self.work.progress.glob("*.json"):
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
        is_new = not self.is_finished
        if is_new:
            self._make(workers, skip_bad)
        if not is_shared(self.work.claims):
            shutil.rmtree(self.work.path, ignore_errors=True)
            remove_drafts(self.out)
        found = check_metadata(self.directory)
        return Built(self.directory, found["subsets"], Skipped(**found["skipped"]), is_new)

    def _make(self, workers: int, skip_bad: bool) -> None:
        files = list(self._pieces(skip_bad))
        for piece in files:
            if piece.number == 0:  # a wrong source is refused before anything is written
                next(read_documents(piece.files, piece.fields, Skipped(), skip_bad=skip_bad), None)
        claims = self.work.claims
        with begun(self.out, _PLAN, self._request, results="work/notes/*.json", claims=claims):
            for folder in (self.work.notes, self.work.shards, self.work.progress):
                folder.mkdir(parents=True, exist_ok=True)
            pieces = [Piece(p.name, self.work.notes / f"{p.name}.json", (self.work, p)) for p in files]
            share_out(write_piece, pieces, workers=workers, claims=claims)
        names = [piece.name for piece in files]
        arguments = (self.work, self.directory, SOURCES[self.config.source].dataset, names)
        last = Piece("the data set's metadata", self.directory / "dataset_info.json", arguments)
        share_out(finish, [last], workers=1, claims=claims)

    def _pieces(self, skip_bad: bool) -> Iterator[FilePiece]:
        """Joins the files of every split, in their order, while their sizes add up to at most a shard's."""
        limit, fields = self.config.max_shard_mb * MEGABYTE, self.config.fields
        for split, found in self.files.items():
            groups: list[list[Path]] = []
            room = 0
            for file in found.values():
                size = file.stat().st_size
                if not groups or size > room:
                    groups.append([])
                    room = limit
                groups[-1].append(file)
                room -= size
            fraction = self.config.hashed_fraction if split == "train" else 0.0
            for i, group in enumerate(groups):
                yield FilePiece(split, i, tuple(group), fields, fraction, limit, skip_bad)
