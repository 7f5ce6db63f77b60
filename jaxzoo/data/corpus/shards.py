"""array_record shards of documents, written section by section, and the metadata that makes them a data set.

A piece is some files of a split. It is made in sections: once the documents since the last cut hold `section_bytes` of
text, the shards of all splits are closed, and a note records their content and where reading continues. A killed build
continues after its last note, and cuts the same sections. `finish`, the last step of a build, names the shards.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.checked import Count
from jaxzoo.data.corpus.built import write_metadata_checksums
from jaxzoo.data.corpus.files import hash_share
from jaxzoo.data.corpus.sources import BEGINNING, SUMMARIES, Layout, Position, Skipped, TextDocument, read_documents
from jaxzoo.utils.checksums import add_checksum, file_sha256, read_checked
from jaxzoo.utils.whole_files import replacing, write_json, write_whole

WRITER_OPTIONS = "group_size:1,zstd:3"
"""Options of array_record that determine its bytes; one document per group, so that any can be read alone."""
VERSION = "1.0.0"
"""Version of the data sets."""
RELEASE_NOTES = {VERSION: "Documents with text and subset."}
PROGRESS_SECONDS = 1.0
"""Time between two progress records of a piece."""


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
    """Documents and bytes of their text."""

    documents: Count = 0
    bytes: Count = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        return TextCounts(self.documents + other.documents, self.bytes + other.bytes)


@dataclasses.dataclass
class ShardContent:
    """Content of the shard of a split and section."""

    file_bytes: Count = 0
    subsets: dict[str, TextCounts] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> TextCounts:
        """Content of all subsets."""
        return sum(self.subsets.values(), TextCounts())


@dataclasses.dataclass
class Section:
    """Finished section of a piece, as its note records it."""

    end: Position
    """Where reading continues."""
    ended: bool
    """Whether it is the last section of its piece."""
    splits: dict[str, ShardContent]
    skipped: Skipped


class PieceFiles:
    """Files of a piece in the directory of an unfinished build.

    Attributes:
        shards: directory that becomes the data set.
        progress: progress of the piece, for the user.
    """

    def __init__(self, note: Path):
        work = note.parent.parent
        self.name: str = note.stem
        self.note: Path = note
        self.shards: Path = work / "dataset"
        self.progress: Path = work / "progress" / note.name

    def section_note(self, section: int) -> Path:
        """Note of the content of a section."""
        return self.note.with_name(f"{self.name}-{section:05d}.json")

    def shard(self, section: int, split: str) -> Path:
        """Shard of a section and split."""
        return self.shards / f"{self.name}-{section:05d}-{split}.array_record"

    def sections(self) -> list[Section]:
        """Finished sections, in order. Raises `ValueError` if a note is damaged."""
        notes = itertools.takewhile(Path.exists, map(self.section_note, itertools.count()))
        remedy = f"remove {self.note.parent.parent} and build again"
        return [read_checked(note, Section, remedy=remedy) for note in notes]


def write_piece(piece: FilePiece, note: Path) -> None:
    """Makes the missing sections of a piece. Raises `ValueError`, with file and line, at damage that is not skipped."""
    files = PieceFiles(note)
    for folder in (files.shards, files.progress.parent):
        folder.mkdir(exist_ok=True)
    for draft in files.shards.glob(f"{files.name}-*.tmp"):  # of a killed worker
        draft.unlink(missing_ok=True)
    sections = files.sections()
    done = sum((shard.total for section in sections for shard in section.splits.values()), TextCounts())
    end, ended = (sections[-1].end, sections[-1].ended) if sections else (BEGINNING, False)
    skipped, told = Skipped(), time.monotonic()

    def tell(n_files: int) -> None:
        write_json(files.progress, {**dataclasses.asdict(done), "files": n_files})

    documents = read_documents(piece.files, piece.fields, skipped, start=end, skip_bad=piece.skip_bad)
    for i in itertools.count(len(sections)):
        if ended:
            break
        end_of_section = done.bytes + piece.section_bytes
        with _SectionWriter(files, piece, i) as writer:
            for end, document in documents:
                done += TextCounts(1, writer.add(document))
                if time.monotonic() - told >= PROGRESS_SECONDS:
                    tell(end.file)
                    told = time.monotonic()
                if done.bytes >= end_of_section:
                    break
            else:
                ended = True
        section = Section(end, ended, writer.content(), skipped.take())
        write_json(files.section_note(i), add_checksum(dataclasses.asdict(section)))
    tell(len(piece.files))
    write_json(note, {})


class _SectionWriter(contextlib.ExitStack):
    """Writer of the shards of a section, which are in their places after the block."""

    def __init__(self, files: PieceFiles, piece: FilePiece, section: int):
        super().__init__()
        self._files, self._piece, self._section = files, piece, section
        self._writers: dict[str, Any] = {}
        self._content: dict[str, ShardContent] = {}

    def add(self, document: TextDocument) -> int:
        """Writes a document to the shard of its split; returns the bytes of its text."""
        from array_record.python.array_record_module import ArrayRecordWriter

        data = document.text.encode()
        is_valid = hash_share(data) < self._piece.valid_fraction
        split = document.split or ("valid" if is_valid else self._piece.split)
        if split not in self._writers:
            place = self.enter_context(replacing(self._files.shard(self._section, split)))
            self._writers[split] = ArrayRecordWriter(os.fspath(place), WRITER_OPTIONS)
            self.callback(self._writers[split].close)
            self._content[split] = ShardContent()
        self._writers[split].write(serializer()(document))
        subsets = self._content[split].subsets
        subsets[document.subset] = subsets.get(document.subset, TextCounts()) + TextCounts(1, len(data))
        return len(data)

    def content(self) -> dict[str, ShardContent]:
        """Content of the finished shards by split."""
        for split, content in self._content.items():
            content.file_bytes = self._files.shard(self._section, split).stat().st_size
        return self._content


@functools.cache
def serializer() -> Callable[[TextDocument], bytes]:
    """Returns a function that serializes a document as tensorflow-datasets does.

    The features' own `serialize_example` gives the two fields in an order that changes from process to process.
    """
    import tensorflow_datasets as tfds

    encode = _features().encode_example
    specs: Any = _features().get_serialized_info()
    to_proto = tfds.core.ExampleSerializer(specs).get_tf_example
    return lambda document: to_proto(encode({"text": document.text, "subset": document.subset})).SerializeToString(
        deterministic=True
    )


def _features() -> Any:
    """Features of every corpus: `text`, and `subset`, which is empty where the corpus has no parts."""
    import tensorflow_datasets as tfds

    return tfds.features.FeaturesDict({"text": tfds.features.Text(), "subset": tfds.features.Text()})


Shards = dict[str, list[tuple[Path, ShardContent]]]
"""Shards in the work directory, by split, in their order."""


def finish(notes: Sequence[Path], directory: Path) -> None:
    """Makes the directory of a data set of the shards of all pieces, whole or not at all.

    Notes are in the order of the inputs; the directory's parent has the data set's name. Raises `ValueError` if there
    is no document to train on.
    """
    shards: Shards = {}
    totals: dict[str, dict[str, TextCounts]] = {}
    skipped, out, dataset = Skipped(), directory.parent.parent, directory.parent.name
    for files in map(PieceFiles, notes):
        sections = files.sections()
        if not sections or not sections[-1].ended:
            where = files.note.parent
            raise ValueError(f"{where} lacks a note of the piece {files.name}; remove {out} and build again")
        for i, section in enumerate(sections):
            skipped.add(section.skipped)
            for split, content in section.splits.items():
                shards.setdefault(split, []).append((files.shard(i, split), content))
                total = totals.setdefault(split, {})
                for subset, counts in content.subsets.items():
                    total[subset] = total.get(subset, TextCounts()) + counts
    if "train" not in shards:
        raise ValueError(f"{out}: the inputs of --paths must hold a document to train on, but they hold none")
    place = PieceFiles(notes[0]).shards
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

    version, work = tfds.core.Version(VERSION), os.fspath(place.parent)
    identity = DatasetIdentity(dataset, version, work, __name__, release_notes=RELEASE_NOTES)
    summary = SUMMARIES[dataset]
    info = tfds.core.DatasetInfo(
        builder=identity, description=summary, features=_features(), metadata=tfds.core.MetadataDict(metadata)
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
    _write_card(place, dataset, summary, metadata)


SHOWN_SUBSETS = 30
"""Most names of subsets in a row of the card."""
_CARD = """# {dataset}

{summary}

| split | documents | bytes of text | subsets |
| --- | --- | --- | --- |
{rows}

Features: `text` and `subset`, which is empty where there are no parts; both are UTF-8. Without TensorFlow:

    import tensorflow_datasets as tfds  # pip install tensorflow-datasets array_record importlib_resources

    rows = tfds.data_source("{dataset}", split="train", data_dir="DIRECTORY ABOVE {dataset}")

`sha256sum -c SHA256SUMS` verifies the shards. Made by `python -m jaxzoo.data.build`; damaged input left out: {lines}
lines, and the rest of {files} files.
"""


def _write_card(directory: Path, dataset: str, summary: str, metadata: dict[str, Any]) -> None:
    """Writes `README.md` and `SHA256SUMS`, for users of tensorflow-datasets alone."""
    lines = []
    for file in sorted(directory.glob("*.array_record*")):
        lines.append(f"{file_sha256(file)}  {file.name}\n")
    write_whole(directory / "SHA256SUMS", "".join(lines))
    rows = []
    for split, subsets in metadata["subsets"].items():
        counts = (sum(held[what] for held in subsets.values()) for what in ("documents", "bytes"))
        names = ", ".join(list(subsets)[:SHOWN_SUBSETS]) + (", ..." if len(subsets) > SHOWN_SUBSETS else "")
        rows.append(f"| {split} | {' | '.join(f'{n:,}' for n in counts)} | {names} |")
    text = _CARD.format(dataset=dataset, summary=summary, rows="\n".join(rows), **metadata["skipped"])
    write_whole(directory / "README.md", text)
