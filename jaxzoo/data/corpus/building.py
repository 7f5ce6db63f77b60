"""Build of source files into a tensorflow-datasets directory of array_record shards, in parallel, and restartable.

    OUT/build.json                              what is built; another request is refused
    OUT/work                                    shards and notes of an unfinished build (`shards`)
    OUT/the_pile/1.0.0/dataset_info.json        with features.json and metadata.json: counts by subset, what was skipped
    OUT/the_pile/1.0.0/the_pile-train.array_record-00000-of-00012

The files of a split are joined to pieces of about a shard's size in their order, a larger file being a piece of its
own; workers share the pieces out. The bytes of the result depend on the inputs and the request alone.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jaxzoo.data.corpus.built import check_metadata
from jaxzoo.data.corpus.finish import finish
from jaxzoo.data.corpus.lines import COMPRESSED
from jaxzoo.data.corpus.request import BuildConfig, find_inputs, pieces_of, request
from jaxzoo.data.corpus.shards import FilePiece, WorkDirectory, write_piece
from jaxzoo.data.corpus.sources import SOURCES, Skipped, read_documents
from jaxzoo.data.pieces.resumable import check_plan, remove_drafts, removed_if_refused, write_plan
from jaxzoo.data.pieces.share_out import Piece, is_shared, share_out
from jaxzoo.extras import need
from jaxzoo.json_files import read_json

VERSION = "1.0.0"
"""Version of the data sets."""
COMPRESSED_FACTOR = 2.0
"""Bytes of shards for a byte of compressed input, at most: shards compress each document by itself."""
_PLAN = "build.json"


class Progress(NamedTuple):
    """How far a build is."""

    documents: int
    bytes: int
    """Bytes of text."""
    files: int
    """Inputs that are done."""


class Built(NamedTuple):
    """A finished data set."""

    directory: Path
    """Directory for `tensorflow_datasets.builder_from_directory`."""
    subsets: dict[str, dict[str, dict[str, int]]]
    """`documents` and `bytes` of text, by split and subset."""
    skipped: Skipped
    """Counts of skipped input."""
    is_new: bool
    """Whether this call has made any of it."""

    def total(self, split: str, what: str) -> int:
        """`documents` or `bytes` of a split."""
        return sum(counts[what] for counts in self.subsets.get(split, {}).values())


class Build:
    """A build in a directory. Finds the inputs, and refuses what could not work, before anything is written.

    Args:
        config: what is built.
        out: the directory, which need not exist.

    Raises:
        ValueError: no input, or `out` holds something else; with the first difference.
        OSError: something cannot be read.
    """

    def __init__(self, config: BuildConfig, out: Path):
        for library in ("tensorflow_datasets", "array_record", "zstandard"):
            need(library, "building a corpus")
        self.config, self.out = config, out
        self.files = find_inputs(config)
        dataset = SOURCES[config.source].dataset
        self.directory = out / dataset / VERSION
        self.work = WorkDirectory(out / "work")
        self._request = request(config, self.files)
        check_plan(out, _PLAN, self._request)

    @property
    def n_files(self) -> int:
        """Number of inputs."""
        return sum(map(len, self.files.values()))

    @property
    def is_finished(self) -> bool:
        """Whether the data set is there."""
        return (self.directory / "dataset_info.json").is_file()

    def estimate(self) -> int:
        """Bytes of disk that the data set needs: `COMPRESSED_FACTOR` for compressed inputs, 1 for others."""
        files = [file for files in self.files.values() for file in files.values()]
        return round(
            sum(
                file.stat().st_size * (COMPRESSED_FACTOR if file.suffix in (*COMPRESSED, ".parquet") else 1)
                for file in files
            )
        )

    def check_disk(self) -> None:
        """Raises `ValueError` where the disk has too little space for what is left to write."""
        place = next(p for p in (self.out, *self.out.absolute().parents) if p.exists())
        free = shutil.disk_usage(place).free
        held = sum(map(_size, self.work.path.rglob("*.array_record")))
        need = max(self.estimate() - held, 0)
        if need > free:
            raise ValueError(
                f"--out {self.out}: about {need / 1e9:,.1f} GB are needed ({COMPRESSED_FACTOR:g} times the size of "
                f"compressed inputs, the size of others) and {free / 1e9:,.1f} GB are free; free some, choose another "
                "place, or try with --allow-low-disk"
            )

    def progress(self) -> Progress:
        """How far all that work on it are together."""
        found = [Progress(0, 0, 0)]
        for file in self.work.progress.glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):  # another command has ended the build
                found.append(read_json(file, Progress))
        return Progress(*map(sum, zip(*found, strict=True)))

    def run(self, *, workers: int = 1, skip_bad: bool = False) -> Built:
        """Makes what is missing.

        Args:
            workers: processes; several such calls, on machines that share the directory, share the work.
            skip_bad: whether damaged lines, and the rest of damaged files, are counted and left out.

        Raises:
            ValueError: an input is damaged, or holds no document to train on.
            OSError: the data set cannot be written, or a worker was killed.
        """
        if self.is_finished:
            self._remove_work()
            return self._read(is_new=False)
        pieces = list(pieces_of(self.config, self.files, skip_bad))
        _probe(pieces)
        with removed_if_refused(self.out, lambda: self.work.has_notes or is_shared(self.work.claims)):
            write_plan(self.out, _PLAN, self._request)
            self.work.create()
            share_out(
                write_piece,
                [Piece(p.name, self.work.note(p.name), (os.fspath(self.work.path), p)) for p in pieces],
                workers=workers,
                report=lambda *_: None,
                claims=self.work.claims,
            )
        names = [piece.name for piece in pieces]
        arguments = (os.fspath(self.out), SOURCES[self.config.source].dataset, VERSION, names)
        last = Piece("the data set's metadata", self.directory / "dataset_info.json", arguments)
        share_out(finish, [last], workers=1, report=lambda *_: None, claims=self.work.claims)
        self._remove_work()
        return self._read(is_new=True)

    def _remove_work(self) -> None:
        """Removes what the data set does not need, unless another command still looks at it."""
        if not is_shared(self.work.claims):
            shutil.rmtree(self.work.path, ignore_errors=True)
            remove_drafts(self.out, _PLAN)

    def _read(self, *, is_new: bool) -> Built:
        found = check_metadata(self.directory)
        return Built(self.directory, found["subsets"], Skipped(**found["skipped"]), is_new)


def build(config: BuildConfig, out: Path, *, workers: int = 1, skip_bad: bool = False) -> Built:
    """Makes a data set, or finishes one, or finds it finished; `Build` says what it raises."""
    return Build(config, out).run(workers=workers, skip_bad=skip_bad)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # renamed by another command
        return 0


def _probe(pieces: Iterable[FilePiece]) -> None:
    """Reads the first document of every split, so that a wrong source is refused before anything is written."""
    for piece in pieces:
        if piece.number == 0:
            next(read_documents(piece.files, piece.fields, Skipped(), skip_bad=piece.skip_bad), None)
