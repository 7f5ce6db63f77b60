"""Documents from files on disk, read as a stream: the Pile, SlimPajama, JSON lines, parquet, folders of text, FASTA.

The Pile (Gao et al., 2020, arXiv 2101.00027) is distributed as `jsonl.zst` files with the keys `text` and
`meta.pile_set_name`; SlimPajama (Soboleva et al., 2023) as such files with `text` and `meta.redpajama_set_name`.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.data.corpus.fasta import FastaLayout, read_bases
from jaxzoo.data.corpus.files import find_files
from jaxzoo.data.corpus.lines import COMPRESSED, MOST_LINE_BYTES, DamagedFileError, read_lines
from jaxzoo.data.corpus.rows import TABLES, read_rows

LINES = (".jsonl", *(f".jsonl{ending}" for ending in COMPRESSED))
"""Endings of what is read in a directory of JSON lines."""
MOST_TEXT_BYTES = 2**28
"""Largest file of text, 256 MiB: it is one document."""
FASTA = tuple(name + packed for name in (".fa", ".fasta", ".fna") for packed in ("", ".gz", ".bgz"))
"""Endings of what is read in a directory of sequences."""
MOST_REMEMBERED = 5
"""Number of skipped places that are named."""


class Fields(NamedTuple):
    """Where text and subset stand in a line of JSON: keys joined by dots."""

    text: str = "text"
    subset: str = ""
    """Empty: the documents are of no subset."""


class Source(NamedTuple):
    """A kind of corpus."""

    dataset: str
    """Name of its tensorflow-datasets builder."""
    fields: "Layout"
    """Fields of its lines; None: every file is one document."""
    summary: str
    """For help texts and the data set's description."""
    endings: tuple[str, ...] = ()
    """Of the files that are read in a directory; empty: all."""


Layout = Fields | FastaLayout | None
"""How documents stand in a file: fields of lines, bases of FASTA, or None: the file is one document."""


SOURCES = {
    "pile": Source("the_pile", Fields("text", "meta.pile_set_name"), "The Pile, from its jsonl.zst files", LINES),
    "slimpajama": Source(
        "slim_pajama", Fields("text", "meta.redpajama_set_name"), "SlimPajama, from its jsonl.zst files", LINES
    ),
    "text": Source("text_corpus", None, "UTF-8 text, a file a document"),
    "jsonl": Source(
        "text_corpus", Fields(), "Documents in JSON lines, compressed with zstd, gzip or bzip2, or plain", LINES
    ),
    "parquet": Source(
        "text_corpus", Fields(), "Rows of parquet or Arrow files, such as a folder of Hugging Face datasets", TABLES
    ),
    "fasta": Source("dna", FastaLayout({}), "Bases of FASTA files, plain or compressed by gzip or bgzip", FASTA),
}


class TextDocument(NamedTuple):
    """One document."""

    text: str
    """Not empty."""
    subset: str
    """Which part of the corpus it is of; empty where there are no parts."""


class PlacedDocument(NamedTuple):
    """One document that says itself which split it is of."""

    text: str
    subset: str
    split: str


AnyDocument = TextDocument | PlacedDocument


class Position(NamedTuple):
    """Place of the next document."""

    file: int
    """Index among the files."""
    line: int
    """Lines of it that have been read."""


BEGINNING = Position(0, 0)
_END: Any = object()


@dataclasses.dataclass
class Skipped:
    """Counts of skipped input."""

    lines: int = 0
    """Damaged ones; a file of text counts as one."""
    files: int = 0
    """Damaged ones, of which the rest was left out."""
    empty: int = 0
    """Documents without a character."""
    places: list[str] = dataclasses.field(default_factory=list)
    """The first damaged ones, each `file name:line: what is wrong`."""

    def plus(self, other: "Skipped") -> "Skipped":
        """The sums over both."""
        places = [*self.places, *other.places][:MOST_REMEMBERED]
        return Skipped(self.lines + other.lines, self.files + other.files, self.empty + other.empty, places)

    def take(self) -> "Skipped":
        """Returns the counts since the last call."""
        taken = dataclasses.replace(self)
        self.lines = self.files = self.empty = 0
        self.places = []
        return taken

    def remember(self, place: str) -> None:
        """Keeps a place, if there is room."""
        if len(self.places) < MOST_REMEMBERED:
            self.places.append(place)


class DamagedLineError(ValueError):
    """A line holds no document; the message is what is wrong with it, without file and line."""


def find_source_files(source: str, path: str, *, option: str = "--paths") -> dict[str, Path]:
    """Relative POSIX name -> file, sorted by name, of what `path` names for a source.

    Args:
        source: a key of `SOURCES`.
        path: directory, file or glob, as in `corpus.find_files`. Of a directory of JSON lines, files with the endings
            `LINES` are taken; of a glob, all.
        option: what errors call `path`.

    Raises:
        ValueError: it names no file.
        OSError: a directory cannot be listed.
    """
    files = find_files(path, field=option)
    endings = SOURCES[source].endings
    if endings and Path(path).expanduser().is_dir():
        files = {name: file for name, file in files.items() if name.endswith(endings)}
    if source == "parquet":
        files = _without_caches(files, Path(path).expanduser(), option)
    if not files:
        kind = f"files named {' or '.join('*' + ending for ending in endings)}" if endings else "files"
        raise ValueError(f"{option}={path!r} must name {kind}, but there is none; check the spelling")
    return files


def _without_caches(files: dict[str, Path], folder: Path, option: str) -> dict[str, Path]:
    """The files without those in which Hugging Face `datasets` keeps what it has computed.

    Raises:
        ValueError: the folder holds several splits.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(place.name for place in folder.iterdir() if place.is_dir())
        raise ValueError(
            f"{option} {folder} holds the splits {', '.join(splits)}; name each by itself, such as --paths "
            f"{folder / splits[0] if splits else folder} and --valid-paths"
        )
    return {name: file for name, file in files.items() if not file.name.startswith("cache-")}


def read_documents(
    files: Sequence[Path],
    fields: Layout,
    skipped: Skipped,
    *,
    start: Position = BEGINNING,
    skip_bad: bool = False,
) -> Iterator[tuple[Position, AnyDocument]]:
    """The documents of files, each with the position after it.

    Args:
        files: in this order; those named `.zst` are decompressed.
        fields: of their lines, or the splits of sequences; None: every file is one document.
        skipped: counts what is left out. Empty lines count as nothing.
        start: a position that this function gave.
        skip_bad: whether damage is counted and left out; after damaged compression, the rest of its file is.

    Raises:
        ValueError: a line or file is damaged (no JSON, no text, not UTF-8, bad compression): file, line, what is wrong.
        OSError: a file cannot be read.
    """
    for i in range(start.file, len(files)):
        n_before = start.line if i == start.file else 0
        line = n_before
        lines = _enumerated(files[i], fields, n_before)
        while True:
            try:
                line, data = next(lines, (line, _END))
                if data is _END:
                    break
                document = _parsed(data, fields)
                if document.text:
                    yield Position(i, line), document
                else:
                    skipped.empty += 1
            except (DamagedLineError, DamagedFileError) as error:
                rest = isinstance(error, DamagedFileError)
                unit = "document" if isinstance(fields, FastaLayout) else "line"
                where = f"after {unit} {line}" if rest else f"{line}"
                if not skip_bad:
                    effect = "leave out the rest of the file" if rest else "leave out such lines"
                    raise ValueError(f"{files[i]}:{where}: {error}; --skip-bad to {effect}") from error
                skipped.lines, skipped.files = skipped.lines + (not rest), skipped.files + rest
                skipped.remember(f"{files[i].name}:{where}: {error}")


def _enumerated(file: Path, fields: Layout, n_before: int) -> Iterator[tuple[int, bytes | dict | AnyDocument | None]]:
    """Yields number and content of each line that is not blank after the first `n_before`; of the file, as line 1; or
    of each document of sequences.

    The content of what is too large is None.
    """
    if isinstance(fields, FastaLayout):
        left = itertools.islice(enumerate(read_bases(file, fields), start=1), n_before, None)
        for number, (text, name, split) in left:
            yield number, PlacedDocument(text, name, split) if fields.intervals else TextDocument(text, name)
    elif fields is not None and file.suffix in TABLES:
        columns = [name.split(".")[0] for name in fields if name]
        yield from read_rows(file, list(dict.fromkeys(columns)), n_before)
    elif fields is not None:
        for number, line in enumerate(read_lines(file), start=1):
            if number > n_before and (line is None or line.strip()):
                yield number, line
    elif n_before == 0:
        yield 1, file.read_bytes() if file.stat().st_size <= MOST_TEXT_BYTES else None


def _parsed(data: bytes | dict | AnyDocument | None, fields: Layout) -> AnyDocument:
    if data is None:
        what = f"longer than {MOST_LINE_BYTES:,}" if fields else f"larger than {MOST_TEXT_BYTES:,}"
        raise DamagedLineError(f"{what} bytes")
    if not isinstance(data, bytes | dict):
        return data
    try:
        text = data if isinstance(data, dict) else data.decode("utf-8")
        if fields is None:
            return TextDocument(str(text), "")
        record = text if isinstance(text, dict) else json.loads(text)
        assert isinstance(fields, Fields)
        document = TextDocument(_field(record, fields.text), _field(record, fields.subset) if fields.subset else "")
        for part in document:  # JSON may spell out half a character, such as "\ud800"
            part.encode("utf-8")
    except DamagedLineError:
        raise
    except UnicodeError as error:
        raise DamagedLineError(f"not UTF-8: {getattr(error, 'reason', error)}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedLineError(f"not JSON: {error}") from error
    return document


def _field(record: Any, keys: str) -> str:
    value = record
    for key in keys.split("."):
        if not isinstance(value, dict) or key not in value:
            raise DamagedLineError(f"no field {keys!r}")
        value = value[key]
    if not isinstance(value, str):
        raise DamagedLineError(f"field {keys!r} must be a string, got {json.dumps(value, default=str)[:40]}")
    return value
