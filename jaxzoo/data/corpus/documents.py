"""Documents from files on disk, read as a stream.

The Pile (Gao et al., 2020, arXiv 2101.00027) is distributed as `jsonl.zst` files with the keys `text` and
`meta.pile_set_name`; SlimPajama (Soboleva et al., 2023) as such files with `text` and `meta.redpajama_set_name`.
"""

import codecs
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.json_files import refuse_pointer
from jaxzoo.data.corpus.fasta import FastaLayout, read_bases
from jaxzoo.data.corpus.files import find_files
from jaxzoo.data.corpus.labelled import find_benchmark, read_benchmark, read_labelled
from jaxzoo.data.corpus.lines import (
    COMPRESSED,
    MOST_LINE_BYTES,
    TABLES,
    DamagedFileError,
    TextDocument,
    read_lines,
    read_rows,
)

LINES = (".jsonl", *(f".jsonl{ending}" for ending in COMPRESSED))
"""Suffixes of JSON lines files that are read in a directory."""
FASTA = tuple(name + packed for name in (".fa", ".fasta", ".fna") for packed in ("", ".gz", ".bgz"))
"""Suffixes of FASTA files that are read in a directory."""
MOST_TEXT_BYTES = 2**28
"""Largest text file, 256 MiB, as it is one document."""
MOST_REMEMBERED = 5
"""Number of skipped places that are listed."""


class DocumentFields(NamedTuple):
    """Fields of text and subset in a line of JSON: keys joined by dots."""

    text: str = "text"
    subset: str = ""
    """Empty: the documents have no subset."""


class LabelledLayout(NamedTuple):
    """Sequences with a class each, the subset: `jaxzoo/data/corpus/labelled.py`."""


Layout = DocumentFields | FastaLayout | LabelledLayout | None
"""Layout of documents in a file: fields of lines, bases of FASTA, labelled sequences; None: one document per
file."""


class Source(NamedTuple):
    dataset: str
    """Name of the tensorflow-datasets data set."""
    fields: Layout
    endings: tuple[str, ...] = ()
    """Suffixes of the files that are read in a directory; empty: all."""


SOURCES = {
    "pile": Source("the_pile", DocumentFields("text", "meta.pile_set_name"), LINES),
    "slimpajama": Source("slim_pajama", DocumentFields("text", "meta.redpajama_set_name"), LINES),
    "text": Source("text_corpus", None),
    "jsonl": Source("text_corpus", DocumentFields(), LINES),
    "parquet": Source("text_corpus", DocumentFields(), TABLES),
    "fasta": Source("dna", FastaLayout({}), FASTA),
    "labelled": Source("labelled_sequences", LabelledLayout()),
}


SUMMARIES = {
    "text_corpus": "Documents in files of text or lines of JSON.",
    "the_pile": "The Pile (Gao et al., 2020, arXiv 2101.00027), with the name of the subset of every document.",
    "slim_pajama": "SlimPajama (Soboleva et al., 2023), with the name of the subset of every document.",
    "dna": "Bases (A, C, G, T, N) of sequences in FASTA files, without the gaps of the assembly.",
    "labelled_sequences": "Sequences with a class each, whose name is the subset, in the splits of their folders.",
}


@dataclasses.dataclass
class Skipped:
    """Counts of skipped input."""

    lines: int = 0
    """Damaged lines; a file of text counts as one."""
    files: int = 0
    """Damaged files whose rest was skipped."""
    empty: int = 0
    """Documents without a character."""
    places: list[str] = dataclasses.field(default_factory=list)
    """First damaged places, each `file name:line: error`."""

    def add(self, other: "Skipped") -> None:
        self.lines += other.lines
        self.files += other.files
        self.empty += other.empty
        self.places = [*self.places, *other.places][:MOST_REMEMBERED]


def find_source_files(source: str, path: str, *, option: str = "--paths") -> dict[str, Path]:
    """Returns relative POSIX name -> file, as `find_files` does; in a directory, those with the suffixes of the source.
    Raises `ValueError`, with `option` as the name of `path`, if there is no file."""
    if source == "labelled":
        place = Path(path).expanduser()
        read_benchmark(place)  # refuses what is wrong before anything is written
        found = [file for files in find_benchmark(place).values() for file in files]
        return {file.relative_to(place).as_posix(): file for file in found}
    files = find_files(path, field=option)
    endings = SOURCES[source].endings
    if endings and Path(path).expanduser().is_dir():
        files = {name: file for name, file in files.items() if name.endswith(endings)}
    if source == "parquet":
        folder = Path(path).expanduser()
        if (folder / "dataset_dict.json").is_file():
            splits = sorted(place.name for place in folder.iterdir() if place.is_dir())
            raise ValueError(
                f"{option} {folder} holds the splits {', '.join(splits)}; name each by itself, such as --paths "
                f"{folder / splits[0] if splits else folder} and --valid-paths"
            )
        # without the cache files of Hugging Face `datasets`
        files = {name: file for name, file in files.items() if not file.name.startswith("cache-")}
    if not files:
        kind = f"files named {' or '.join('*' + ending for ending in endings)}" if endings else "files"
        raise ValueError(f"{option}={path!r} must name {kind}, but there is none; check the spelling")
    return files


def read_documents(
    files: Sequence[Path], fields: Layout, skipped: Skipped, *, skip_bad: bool = False
) -> Iterator[TextDocument]:
    """Yields the documents of files of the layout `fields`, in order. `skipped` counts what is skipped, without empty
    lines; with `skip_bad` damaged lines are skipped, and after damaged compression the rest of the file. Otherwise
    raises `ValueError` for a damaged line or file (no JSON, no text, not UTF-8, bad compression): file, line, error."""
    unit = "document" if isinstance(fields, FastaLayout) else "line"
    for file in files:
        number = 0
        try:
            for number, found in _numbered(file, fields):
                if isinstance(found, str):
                    if not skip_bad:
                        raise ValueError(f"{file}:{number}: {found}; --skip-bad to leave out such lines")
                    skipped.add(Skipped(lines=1, places=[f"{file.name}:{number}: {found}"]))
                elif found.text:
                    yield found
                else:
                    skipped.empty += 1
        except DamagedFileError as error:
            where = f"after {unit} {number}: {error}"
            if not skip_bad:
                raise ValueError(f"{file}:{where}; --skip-bad to leave out the rest of the file") from error
            skipped.add(Skipped(files=1, places=[f"{file.name}:{where}"]))


def _numbered(file: Path, fields: Layout) -> Iterator[tuple[int, TextDocument | str]]:
    """Yields number and document of each non-blank line, run of bases, row, or file of text; an error text if it holds
    no document."""
    if isinstance(fields, FastaLayout):
        yield from enumerate(read_bases(file, fields), start=1)
    elif isinstance(fields, LabelledLayout):
        yield from enumerate(read_labelled(file), start=1)
    elif fields is None:
        refuse_pointer(file)
        is_large = file.stat().st_size > MOST_TEXT_BYTES
        yield 1, f"larger than {MOST_TEXT_BYTES:,} bytes" if is_large else _document(file.read_bytes(), None)
    elif file.suffix in TABLES:
        columns = dict.fromkeys(name.split(".")[0] for name in fields if name)
        for number, row in read_rows(file, list(columns)):
            yield number, _document(row, fields)
    else:
        for number, line in enumerate(read_lines(file), start=1):
            if line is None:
                yield number, f"longer than {MOST_LINE_BYTES:,} bytes"
            elif line.strip():
                yield number, _document(line, fields)


def _document(data: bytes | dict, fields: DocumentFields | None) -> TextDocument | str:
    """Returns the document of a row, a line of JSON, or (without fields) a text; an error text if it holds none."""
    try:
        text = "" if isinstance(data, dict) else data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        if fields is None:
            return TextDocument(text, "")
        record = data if isinstance(data, dict) else json.loads(text)
        document = TextDocument(_field(record, fields.text), _field(record, fields.subset) if fields.subset else "")
        for part in document[:2]:  # JSON may spell out half a character, such as "\ud800"
            part.encode("utf-8")
        return document
    except LookupError as error:
        return str(error)
    except UnicodeError as error:
        return f"not UTF-8: {getattr(error, 'reason', error)}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"


def _field(record: Any, keys: str) -> str:
    value = record
    for key in keys.split("."):
        if not isinstance(value, dict) or key not in value:
            raise LookupError(f"no field {keys!r}")
        value = value[key]
    if not isinstance(value, str):
        raise LookupError(f"field {keys!r} must be a string, got {json.dumps(value, default=str)[:40]}")
    return value
