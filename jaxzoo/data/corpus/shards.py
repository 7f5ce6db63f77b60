"""array_record shards of documents, section by section: the part of a build that its workers share.

A piece is some files of a split. It is made in sections: once the documents since the last cut hold `section_bytes` of
text, the shards of all splits are closed, and a note says what they hold and where reading goes on. A build that was
killed goes on after its last note, and cuts the same sections.
"""

import dataclasses
import functools
import hashlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.checked import Count
from jaxzoo.data.corpus.sources import (
    BEGINNING,
    AnyDocument,
    Layout,
    PlacedDocument,
    Position,
    Skipped,
    read_documents,
)
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json

WRITER_OPTIONS = "group_size:1,zstd:3"
"""Options of array_record that determine its bytes; one document per group, so that any can be read alone."""
PROGRESS_SECONDS = 1.0
"""Between two words on how far a piece is."""


class FilePiece(NamedTuple):
    """Work of one call of `write_piece`."""

    split: str
    number: int
    """Among the pieces of its split, from 0 on."""
    files: tuple[Path, ...]
    fields: Layout
    valid_fraction: float
    """Share of its documents that go to the split `valid` instead."""
    section_bytes: int
    skip_bad: bool

    @property
    def name(self) -> str:
        """`train-00003`."""
        return f"{self.split}-{self.number:05d}"


class WorkDirectory:
    """Files of an unfinished build.

    Attributes:
        notes: one a section, and one a piece.
        shards: what becomes the data set.
        progress: how far the pieces under way are; nothing depends on it.
        claims: of those who share the work.

    Args:
        path: the directory, which need not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self.notes, self.shards, self.progress = path / "notes", path / "dataset", path / "progress"
        self.claims = path / "claims"

    def create(self) -> None:
        """Makes what is missing."""
        for folder in (self.notes, self.shards, self.progress):
            folder.mkdir(parents=True, exist_ok=True)

    def note(self, piece: str) -> Path:
        """Note that a piece is done."""
        return self.notes / f"{piece}.json"

    def section_note(self, piece: str, section: int) -> Path:
        """Note of the content of a section."""
        return self.notes / f"{piece}-{section:05d}.json"

    def shard(self, piece: str, section: int, split: str) -> Path:
        """The documents of a section that are of a split."""
        return self.shards / f"{piece}-{section:05d}-{split}.array_record"

    def remove_unfinished(self, piece: str) -> None:
        """Removes what a worker that was killed has left of a shard."""
        for file in self.path.glob(f"{piece}-*.tmp"):
            file.unlink(missing_ok=True)

    def section_notes(self, piece: str) -> "Iterator[SectionNote]":
        """Notes of the finished sections of a piece, in order.

        Raises:
            ValueError: a note is damaged.
        """
        for section in itertools.count():
            note = self.section_note(piece, section)
            if not note.exists():
                return
            yield read_json(note, SectionNote, checksum=True, remedy=f"remove {self.path} and build again")

    @property
    def has_notes(self) -> bool:
        """Whether a section is finished."""
        return any(self.notes.glob("*.json"))


@dataclasses.dataclass
class Held:
    """Content of the shard of a split and section."""

    file_bytes: Count = 0
    subsets: dict[str, list[Count]] = dataclasses.field(default_factory=dict)
    """Documents and bytes of text by subset."""

    def add(self, subset: str, n_bytes: int) -> None:
        """Counts a document."""
        counts = self.subsets.setdefault(subset, [0, 0])
        counts[0] += 1
        counts[1] += n_bytes


class SectionNote(NamedTuple):
    """Note of a finished section."""

    end: Position
    """Where reading goes on."""
    ended: bool
    """Whether it is the last section of its piece."""
    splits: dict[str, Held]
    skipped: Skipped


def write_piece(work: str, piece: FilePiece) -> None:
    """Makes a piece, or what is left of it.

    Raises:
        ValueError: an input is damaged, and is not to be skipped; file and line.
        OSError: an input cannot be read, or a shard not be written.
    """
    directory = WorkDirectory(Path(work))
    directory.remove_unfinished(piece.name)
    told = _Progress(directory, piece)
    section, start, ended = 0, BEGINNING, False
    for note in directory.section_notes(piece.name):
        section, start, ended = section + 1, note.end, note.ended
        told.add(note)
    skipped = Skipped()
    documents = read_documents(piece.files, piece.fields, skipped, start=start, skip_bad=piece.skip_bad)
    while not ended:
        writing = SectionWriter(directory, piece, section)
        for start, document in documents:
            writing.add(document)
            told.say(start, writing.documents, writing.bytes)
            if writing.bytes >= piece.section_bytes:
                break
        else:
            ended = True
        note = SectionNote(start, ended, writing.close(), skipped.take())
        splits = {split: dataclasses.asdict(held) for split, held in note.splits.items()}
        content = {**note._asdict(), "splits": splits, "skipped": dataclasses.asdict(note.skipped)}
        write_json(directory.section_note(piece.name, section), add_checksum(content))
        told.add(note)
        section += 1
    told.end()
    write_json(directory.note(piece.name), {})


class SectionWriter:
    """The shards of a section, while they are written.

    Attributes:
        documents: written so far.
        bytes: of their text.
    """

    def __init__(self, work: WorkDirectory, piece: FilePiece, section: int):
        self._work, self._piece, self._section = work, piece, section
        self._suffix = f"{uuid.uuid4().hex[:8]}.tmp"
        self._writers: dict[str, Any] = {}
        self._held: dict[str, Held] = {}
        self.documents = self.bytes = 0

    def add(self, document: AnyDocument) -> None:
        """Writes a document to the shard of its split."""
        data = document.text.encode()
        by_hash = "valid" if _hash_share(data) < self._piece.valid_fraction else self._piece.split
        split = document.split if isinstance(document, PlacedDocument) else by_hash
        if split not in self._writers:
            self._writers[split] = _writer(self._temporary(split))
            self._held[split] = Held()
        self._writers[split].write(serializer()(document))
        self._held[split].add(document.subset, len(data))
        self.documents += 1
        self.bytes += len(data)

    def close(self) -> dict[str, Held]:
        """Puts the shards in their places; what they hold, by split."""
        for split, writer in sorted(self._writers.items()):
            writer.close()
            file = self._temporary(split)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            self._held[split].file_bytes = file.stat().st_size
            os.replace(file, self._work.shard(self._piece.name, self._section, split))
        return dict(sorted(self._held.items()))

    def _temporary(self, split: str) -> Path:
        return self._work.path / f"{self._piece.name}-{self._section:05d}-{split}.{self._suffix}"


def _writer(file: Path) -> Any:
    from array_record.python.array_record_module import ArrayRecordWriter

    return ArrayRecordWriter(os.fspath(file), WRITER_OPTIONS)


@functools.cache
def serializer() -> Callable[[AnyDocument], bytes]:
    """A document as tensorflow-datasets serializes it.

    The features' own `serialize_example` gives the two fields in an order that changes from process to process.
    """
    import tensorflow_datasets as tfds

    from jaxzoo.data.corpus.builders import features, fields_of

    encode = features().encode_example
    specs: Any = features().get_serialized_info()
    to_proto = tfds.core.ExampleSerializer(specs).get_tf_example
    return lambda document: to_proto(encode(fields_of(document))).SerializeToString(deterministic=True)


def _hash_share(data: bytes) -> float:
    """A number in [0, 1) that is a pure function of a text."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big") / 2**48


class _Progress:
    """Writes how far a piece is."""

    def __init__(self, work: WorkDirectory, piece: FilePiece):
        self._file = work.progress / f"{piece.name}.json"
        self._n_files = len(piece.files)
        self._documents = self._bytes = 0
        self._next = time.monotonic() + PROGRESS_SECONDS

    def add(self, section: SectionNote) -> None:
        """Counts a section that is done."""
        counts = [counts for held in section.splits.values() for counts in held.subsets.values()]
        self._documents += sum(n for n, _ in counts)
        self._bytes += sum(n for _, n in counts)

    def say(self, position: Position, documents: int, n_bytes: int) -> None:
        """Writes down what is done, with a section that is not, if it is time."""
        if time.monotonic() >= self._next:
            self._write(position.file, documents, n_bytes)
            self._next = time.monotonic() + PROGRESS_SECONDS

    def end(self) -> None:
        """Writes down that all is done."""
        self._write(self._n_files, 0, 0)

    def _write(self, files: int, documents: int, n_bytes: int) -> None:
        now = {"documents": self._documents + documents, "bytes": self._bytes + n_bytes, "files": files}
        write_json(self._file, now)
