"""array_record shards of documents, written section by section, and the metadata that makes them a data set.

A piece is some files of a split. It is made in sections: once the documents since the last cut hold `section_bytes` of
text, the shards of all splits are closed, and a note records their content and where reading continues. A killed build
continues after its last note, and cuts the same sections. `finish`, the last step of a build, names the shards.
"""

import dataclasses
import functools
import hashlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.checked import Count
from jaxzoo.data.corpus.built import write_metadata_checksums
from jaxzoo.data.corpus.files import hash_share
from jaxzoo.data.corpus.sources import BEGINNING, SUMMARIES, Layout, Position, Skipped, TextDocument, read_documents
from jaxzoo.json_files import add_checksum, read_json
from jaxzoo.whole_files import write_json, write_whole

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
    number: int
    """Index among the pieces of its split."""
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


@dataclasses.dataclass
class ShardContent:
    """Content of the shard of a split and section."""

    file_bytes: Count = 0
    subsets: dict[str, list[Count]] = dataclasses.field(default_factory=dict)
    """Documents and bytes of text by subset."""


class SectionNote(NamedTuple):
    """Note of a finished section."""

    end: Position
    """Where reading continues."""
    ended: bool
    """Whether it is the last section of its piece."""
    splits: dict[str, ShardContent]
    skipped: Skipped


class WorkDirectory:
    """Files of an unfinished build.

    Attributes:
        notes: one per section, and one per finished piece.
        shards: directory that becomes the data set.
        progress: progress of the pieces under way, for the user.
        claims: locks of the processes that share the work.
    """

    def __init__(self, path: Path):
        self.path = path
        self.notes: Path = path / "notes"
        self.shards: Path = path / "dataset"
        self.progress: Path = path / "progress"
        self.claims: Path = path / "claims"

    def section_note(self, piece: str, section: int) -> Path:
        """Note of the content of a section."""
        return self.notes / f"{piece}-{section:05d}.json"

    def shard(self, piece: str, section: int, split: str) -> Path:
        """Shard of a section and split."""
        return self.shards / f"{piece}-{section:05d}-{split}.array_record"

    def section_notes(self, piece: str) -> Iterator[SectionNote]:
        """Notes of the finished sections of a piece, in order. Raises `ValueError` if one is damaged."""
        for section in itertools.count():
            note = self.section_note(piece, section)
            if not note.exists():
                return
            yield read_json(note, SectionNote, checksum=True, remedy=f"remove {self.path} and build again")


def write_piece(work: WorkDirectory, piece: FilePiece) -> None:
    """Makes the missing sections of a piece. Raises `ValueError`, with file and line, at damage that is not skipped."""
    for draft in work.path.glob(f"{piece.name}-*.tmp"):  # of a killed worker
        draft.unlink(missing_ok=True)
    notes = list(work.section_notes(piece.name))
    subsets = [counts for note in notes for shard in note.splits.values() for counts in shard.subsets.values()]
    n_documents, n_bytes = (sum(counts[i] for counts in subsets) for i in (0, 1))
    start, ended = (notes[-1].end, notes[-1].ended) if notes else (BEGINNING, False)
    reported, progress = time.monotonic(), work.progress / f"{piece.name}.json"
    skipped = Skipped()
    documents = read_documents(piece.files, piece.fields, skipped, start=start, skip_bad=piece.skip_bad)
    for section in itertools.count(len(notes)):
        if ended:
            break
        writer, end_of_section = _SectionWriter(work, piece, section), n_bytes + piece.section_bytes
        for start, document in documents:
            n_documents, n_bytes = n_documents + 1, n_bytes + writer.add(document)
            if time.monotonic() - reported >= PROGRESS_SECONDS:
                write_json(progress, {"documents": n_documents, "bytes": n_bytes, "files": start.file})
                reported = time.monotonic()
            if n_bytes >= end_of_section:
                break
        else:
            ended = True
        splits = {split: dataclasses.asdict(shard) for split, shard in writer.close().items()}
        note = {"end": start, "ended": ended, "splits": splits, "skipped": dataclasses.asdict(skipped.take())}
        write_json(work.section_note(piece.name, section), add_checksum(note))
    write_json(progress, {"documents": n_documents, "bytes": n_bytes, "files": len(piece.files)})
    write_json(work.notes / f"{piece.name}.json", {})


class _SectionWriter:
    """Writer of the shards of a section."""

    def __init__(self, work: WorkDirectory, piece: FilePiece, section: int):
        self._work, self._piece, self._section = work, piece, section
        self._suffix = f"{uuid.uuid4().hex[:8]}.tmp"
        self._writers: dict[str, Any] = {}
        self._content: dict[str, ShardContent] = {}

    def add(self, document: TextDocument) -> int:
        """Writes a document to the shard of its split; returns the bytes of its text."""
        from array_record.python.array_record_module import ArrayRecordWriter

        data = document.text.encode()
        is_valid = hash_share(data) < self._piece.valid_fraction
        split = document.split or ("valid" if is_valid else self._piece.split)
        if split not in self._writers:
            self._writers[split] = ArrayRecordWriter(os.fspath(self._draft(split)), WRITER_OPTIONS)
            self._content[split] = ShardContent()
        self._writers[split].write(serializer()(document))
        counts = self._content[split].subsets.setdefault(document.subset, [0, 0])
        counts[0] += 1
        counts[1] += len(data)
        return len(data)

    def close(self) -> dict[str, ShardContent]:
        """Moves the shards to their places; returns their content by split."""
        for split, writer in sorted(self._writers.items()):
            writer.close()
            file = self._draft(split)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            self._content[split].file_bytes = file.stat().st_size
            os.replace(file, self._work.shard(self._piece.name, self._section, split))
        return dict(sorted(self._content.items()))

    def _draft(self, split: str) -> Path:
        return self._work.path / f"{self._piece.name}-{self._section:05d}-{split}.{self._suffix}"


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


class Shard(NamedTuple):
    """Shard in the work directory."""

    file: Path
    documents: int
    n_bytes: int
    """Size of the file."""


def finish(work: WorkDirectory, directory: Path, dataset: str, pieces: Sequence[str]) -> None:
    """Makes the directory of a data set of the work directory: whole or not at all.

    Args:
        work: with all pieces done.
        directory: of the version of the data set.
        dataset: name of the data set.
        pieces: names of all pieces, in the order of the inputs.

    Raises:
        ValueError: there is no document to train on.
    """
    shards: dict[str, list[Shard]] = {}
    subsets: dict[str, dict[str, dict[str, int]]] = {}
    skipped, out = Skipped(), work.path.parent
    for piece in pieces:
        notes = list(work.section_notes(piece))
        if not notes or not notes[-1].ended:
            raise ValueError(f"{work.notes} lacks a note of the piece {piece}; remove {out} and build again")
        for section, note in enumerate(notes):
            skipped.add(note.skipped)
            for split, content in note.splits.items():
                n_documents = sum(documents for documents, _ in content.subsets.values())
                shard = Shard(work.shard(piece, section, split), n_documents, content.file_bytes)
                shards.setdefault(split, []).append(shard)
                totals = subsets.setdefault(split, {})
                for subset, (documents, n_bytes) in content.subsets.items():
                    total = totals.setdefault(subset, {"documents": 0, "bytes": 0})
                    total["documents"] += documents
                    total["bytes"] += n_bytes
    if "train" not in shards:
        raise ValueError(f"{out}: the inputs of --paths must hold a document to train on, but they hold none")
    _name_shards(work, dataset, shards)
    subsets = {split: dict(sorted(totals.items())) for split, totals in sorted(subsets.items())}
    _write_metadata(work, dataset, shards, {"subsets": subsets, "skipped": dataclasses.asdict(skipped)})
    directory.parent.mkdir(exist_ok=True)
    os.rename(work.shards, directory)


def _name_shards(work: WorkDirectory, dataset: str, shards: dict[str, list[Shard]]) -> None:
    """Renames shards to `<dataset>-<split>.array_record-NNNNN-of-MMMMM`; a killed call may have renamed some."""
    for split, found in shards.items():
        for i, shard in enumerate(found):
            if shard.file.exists():
                if shard.file.stat().st_size != shard.n_bytes:
                    raise ValueError(f"{shard.file} is damaged: it must have {shard.n_bytes:,} bytes; remove the build")
                name = f"{dataset}-{split}.array_record-{i:05d}-of-{len(found):05d}"
                os.replace(shard.file, work.shards / name)


def _write_metadata(
    work: WorkDirectory, dataset: str, shards: dict[str, list[Shard]], metadata: dict[str, Any]
) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_info import DatasetIdentity

    identity = DatasetIdentity(
        dataset, tfds.core.Version(VERSION), os.fspath(work.path), __name__, release_notes=RELEASE_NOTES
    )
    summary = SUMMARIES[dataset]
    info = tfds.core.DatasetInfo(
        builder=identity, description=summary, features=_features(), metadata=tfds.core.MetadataDict(metadata)
    )
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    splits = [
        tfds.core.SplitInfo(
            name=split, shard_lengths=[s.documents for s in found], num_bytes=sum(s.n_bytes for s in found)
        )
        for split in ("train", "valid", "test")
        if (found := shards.get(split))
    ]
    info.set_splits(tfds.core.SplitDict(splits))
    info.write_to_directory(work.shards)
    write_metadata_checksums(work.shards)
    _write_card(work.shards, dataset, summary, metadata)


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
        with file.open("rb") as stream:
            lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {file.name}\n")
    write_whole(directory / "SHA256SUMS", "".join(lines))
    rows = []
    for split, subsets in metadata["subsets"].items():
        counts = (sum(held[what] for held in subsets.values()) for what in ("documents", "bytes"))
        names = ", ".join(list(subsets)[:SHOWN_SUBSETS]) + (", ..." if len(subsets) > SHOWN_SUBSETS else "")
        rows.append(f"| {split} | {' | '.join(f'{n:,}' for n in counts)} | {names} |")
    text = _CARD.format(dataset=dataset, summary=summary, rows="\n".join(rows), **metadata["skipped"])
    write_whole(directory / "README.md", text)
