"""array_record shards of documents, and the metadata that makes them a data set.

A piece is a group of files of a split. New shards begin when the current ones, of all splits together, hold
`section_bytes` of text; the note of a piece, written last, describes its shards. `finish`, the last step of a build,
gives the shards their final names.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.checked import Count
from jaxzoo.data.corpus.built import write_metadata_checksums
from jaxzoo.data.corpus.documents import SUMMARIES, Layout, Skipped, TextDocument, read_documents
from jaxzoo.data.corpus.files import hash_share
from jaxzoo.data.resumable import Job
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked
from jaxzoo.utils.whole_files import replacing, write_json, write_whole

WRITER_OPTIONS = "group_size:1,zstd:3"
"""Options of array_record that determine its bytes; one document per group, so that any can be read alone."""
VERSION = "1.0.0"
RELEASE_NOTES = {VERSION: "Documents with text and subset."}


class FilePiece(NamedTuple):
    """Work of one call of `write_piece`."""

    split: str
    files: tuple[Path, ...]
    fields: Layout
    valid_fraction: float
    """Share of its documents that go to the split `valid` instead."""
    section_bytes: int
    skip_bad: bool


@dataclasses.dataclass(frozen=True)
class TextCounts:
    documents: Count = 0
    bytes: Count = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        return TextCounts(self.documents + other.documents, self.bytes + other.bytes)


@dataclasses.dataclass
class ShardContent:
    file_bytes: Count = 0
    subsets: dict[str, TextCounts] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> TextCounts:
        return sum(self.subsets.values(), TextCounts())


@dataclasses.dataclass
class PieceNote:
    sections: list[dict[str, ShardContent]]
    """Shards by split."""
    skipped: Skipped

    @property
    def total(self) -> TextCounts:
        return sum((shard.total for section in self.sections for shard in section.values()), TextCounts())


def read_note(note: Path) -> PieceNote:
    """Reads the note of a piece. Raises `ValueError` if it is damaged."""
    return read_checked(note, PieceNote, remedy=f"remove {note.parent.parent} and build again")


def _shard(note: Path, section: int, split: str) -> Path:
    return note.parent.parent / "dataset" / f"{note.stem}-{section:05d}-{split}.array_record"


def write_piece(piece: FilePiece, job: Job) -> None:
    """Makes the shards of a piece. Raises `ValueError`, with file and line, at damage that is not skipped."""
    note = job.note
    folder = note.parent.parent / "dataset"
    folder.mkdir(exist_ok=True)
    for left in folder.glob(f"{note.stem}-*"):  # left by a killed worker
        left.unlink()
    skipped = Skipped()
    done = TextCounts()
    sections: list[dict[str, ShardContent]] = []
    documents = read_documents(piece.files, piece.fields, skipped, skip_bad=piece.skip_bad)
    document = next(documents, None)
    while document:
        end = done.bytes + piece.section_bytes
        with _SectionWriter(piece, note, len(sections)) as writer:
            while document and done.bytes < end:
                done += TextCounts(1, writer.add(document))
                job.tell(**dataclasses.asdict(done))
                document = next(documents, None)
        sections.append(writer.content())
    write_json(note, add_checksum(dataclasses.asdict(PieceNote(sections, skipped))))


class _SectionWriter(contextlib.ExitStack):
    """Writer of the shards of a section, which appear after the block."""

    def __init__(self, piece: FilePiece, note: Path, section: int):
        super().__init__()
        self._piece = piece
        self._place = functools.partial(_shard, note, section)
        self._writers: dict[str, Any] = {}
        self._content: dict[str, ShardContent] = {}

    def add(self, document: TextDocument) -> int:
        from array_record.python.array_record_module import ArrayRecordWriter

        data = document.text.encode()
        is_valid = hash_share(data) < self._piece.valid_fraction
        split = document.split or ("valid" if is_valid else self._piece.split)
        if split not in self._writers:
            place = self.enter_context(replacing(self._place(split)))
            self._writers[split] = ArrayRecordWriter(os.fspath(place), WRITER_OPTIONS)
            self.callback(self._writers[split].close)
            self._content[split] = ShardContent()
        self._writers[split].write(serializer()(document))
        subsets = self._content[split].subsets
        subsets[document.subset] = subsets.get(document.subset, TextCounts()) + TextCounts(1, len(data))
        return len(data)

    def content(self) -> dict[str, ShardContent]:
        for split, content in self._content.items():
            content.file_bytes = self._place(split).stat().st_size
        return self._content


@functools.cache
def serializer() -> Callable[[TextDocument], bytes]:
    """Returns a function that serializes a document as tensorflow-datasets does. The features' own `serialize_example`
    writes the two fields in an order that changes from process to process."""
    import tensorflow_datasets as tfds

    encode = _features().encode_example
    specs: Any = _features().get_serialized_info()
    to_proto = tfds.core.ExampleSerializer(specs).get_tf_example
    return lambda document: to_proto(encode({"text": document.text, "subset": document.subset})).SerializeToString(
        deterministic=True
    )


def _features() -> Any:
    """Features of every corpus: `text`, and `subset`, empty if the corpus has no parts."""
    import tensorflow_datasets as tfds

    return tfds.features.FeaturesDict({"text": tfds.features.Text(), "subset": tfds.features.Text()})


Shards = dict[str, list[tuple[Path, ShardContent]]]
"""Shards in the work directory, by split, in order."""


def finish(notes: Sequence[Path], directory: Path) -> None:
    """Makes the directory of a data set from the shards of all pieces, whole or not at all. Notes are in the order
    of the inputs; the directory's parent has the data set's name. Raises `ValueError` if there is no document to
    train on."""
    shards: Shards = {}
    totals: dict[str, dict[str, TextCounts]] = {}
    skipped = Skipped()
    out = directory.parent.parent
    dataset = directory.parent.name
    for note in notes:
        piece = read_note(note)
        skipped.add(piece.skipped)
        for i, section in enumerate(piece.sections):
            for split, content in section.items():
                shards.setdefault(split, []).append((_shard(note, i, split), content))
                total = totals.setdefault(split, {})
                for subset, counts in content.subsets.items():
                    total[subset] = total.get(subset, TextCounts()) + counts
    if "train" not in shards:
        raise ValueError(f"{out}: the inputs of --paths must hold a document to train on, but they hold none")
    place = notes[0].parent.parent / "dataset"
    for split, found in shards.items():
        for i, (file, content) in enumerate(found):
            if file.exists():  # else a killed call has renamed it
                if file.stat().st_size != content.file_bytes:
                    rule = f"it must have {content.file_bytes:,} bytes"
                    raise ValueError(f"{file} is damaged: {rule}; remove the build")
                os.replace(file, place / f"{dataset}-{split}.array_record-{i:05d}-of-{len(found):05d}")
    subsets = {
        split: {subset: dataclasses.asdict(counts) for subset, counts in sorted(total.items())}
        for split, total in sorted(totals.items())
    }
    _write_metadata(place, dataset, shards, {"subsets": subsets, "skipped": dataclasses.asdict(skipped)})
    directory.parent.mkdir(exist_ok=True)
    os.rename(place, directory)


def _write_metadata(place: Path, dataset: str, shards: Shards, metadata: dict[str, Any]) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_info import DatasetIdentity

    version = tfds.core.Version(VERSION)
    work = os.fspath(place.parent)
    identity = DatasetIdentity(dataset, version, work, __name__, release_notes=RELEASE_NOTES)
    info = tfds.core.DatasetInfo(
        builder=identity,
        description=SUMMARIES[dataset],
        features=_features(),
        metadata=tfds.core.MetadataDict(metadata),
    )
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    splits = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[content.total.documents for _, content in found],
            num_bytes=sum(content.file_bytes for _, content in found),
        )
        for split in ("train", "valid", "test")
        if (found := shards.get(split))
    ]
    info.set_splits(tfds.core.SplitDict(splits))
    info.write_to_directory(place)
    write_metadata_checksums(place)
    files = sorted(place.glob("*.array_record*"))
    write_whole(place / "SHA256SUMS", "".join(f"{file_sha256(file)}  {file.name}\n" for file in files))
