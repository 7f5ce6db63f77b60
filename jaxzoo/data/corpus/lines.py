"""Readers in bounded memory: lines of plain and of compressed files; rows of parquet and Arrow files, as Hugging Face
`datasets` keeps them on disk, a few hundred at once."""

import bz2
import codecs
import collections
import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.config.checked import nearest
from jaxzoo.config.json_files import refuse_pointer
from jaxzoo.utils.extras import need

CHUNK_BYTES = 2**16
"""Bytes that are read, or split into lines, at once."""
ZSTD_BYTES = 2**9
"""Bytes that are decompressed at once; zstd makes at most 32,768 times as many of them, 16 MiB."""
HELD_BYTES = 2**22
"""Decompressed bytes that are held back until more of the file, or the end of its frame, has been read."""
MOST_LINE_BYTES = 2**26
"""Longest line, 64 MiB."""
WINDOW_BYTES = 2**31
"""Largest window of a zstd frame that is read: what `zstd --long=31` makes."""
COMPRESSED = (".zst", ".gz", ".bz2")
"""Endings of the names of compressed files."""
TABLES = (".parquet", ".arrow")
"""Endings of parquet and Arrow files."""
ROWS_AT_ONCE = 256
"""Rows of parquet that are decoded at once."""


class DamagedFileError(ValueError):
    """Error after which the rest of a file cannot be read; the message lacks its name."""


class TextDocument(NamedTuple):
    """One document."""

    text: str
    subset: str
    """Part of the corpus; empty where there are no parts."""
    split: str = ""
    """Split that the document itself names; empty: that of its file."""
    is_repaired: bool = False
    """Whether U+FFFD stands in the text for bytes that are not UTF-8."""


def read_lines(file: Path) -> Iterator[bytes | None]:
    """Yields the lines of a file without their ends, None for a line longer than `MOST_LINE_BYTES`.

    A byte order mark at the beginning of the file is dropped.

    Files with the endings `COMPRESSED` are decompressed, whatever their number of frames. Raises `DamagedFileError` if
    compressed data are damaged or end within a frame, after the lines before the damage, but for the last `HELD_BYTES`
    before an error that only the checksum at a frame's end may show.
    """
    parts: list[bytes] = []
    n_bytes = 0
    refuse_pointer(file)
    for i, chunk in enumerate(_chunks(file)):
        chunk = chunk if i else chunk.removeprefix(codecs.BOM_UTF8)
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield _joined([*parts, line], n_bytes + len(line))
            parts, n_bytes = [], 0
        n_bytes += len(rest)
        parts = [*parts, rest] if n_bytes <= MOST_LINE_BYTES else []
    if n_bytes:
        yield _joined(parts, n_bytes)


def _joined(parts: list[bytes], n_bytes: int) -> bytes | None:
    return b"".join(parts) if n_bytes <= MOST_LINE_BYTES else None


def _chunks(file: Path) -> Iterator[bytes]:
    """Yields the decompressed content, at most `CHUNK_BYTES` at once."""
    if file.suffix == ".zst":
        yield from _zstd(file)
        return
    kinds = {".gz": gzip.open, ".bz2": bz2.open}
    try:
        with kinds.get(file.suffix, open)(file, "rb") as stream:
            held: collections.deque[bytes] = collections.deque()
            while chunk := stream.read(CHUNK_BYTES):
                held.append(chunk)
                if file.suffix not in COMPRESSED or len(held) > HELD_BYTES // CHUNK_BYTES:
                    yield held.popleft()
            yield from held
    except EOFError as error:
        raise DamagedFileError(f"its {file.suffix[1:]} data end early: the file is truncated") from error
    except (OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedFileError(f"damaged {file.suffix[1:]} data: {error}") from error


def _zstd(file: Path) -> Iterator[bytes]:
    import zstandard

    frame, held = None, bytearray()
    try:
        with file.open("rb") as stream:
            while part := stream.read(ZSTD_BYTES):
                while part:
                    frame = frame or zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
                    held += frame.decompress(part)
                    part = b""
                    if frame.eof:
                        part, frame = frame.unused_data, None
                    if frame is None or len(held) > HELD_BYTES:
                        yield from _cut(held)
    except zstandard.ZstdError as error:
        raise DamagedFileError(f"damaged zstd data: {error}") from error
    if frame is not None:
        yield from _cut(held)
        raise DamagedFileError("its zstd data end within a frame: the file is truncated")


def _cut(content: bytearray) -> Iterator[bytes]:
    """Yields the content in chunks, and empties it."""
    for start in range(0, len(content), CHUNK_BYTES):
        yield bytes(content[start : start + CHUNK_BYTES])
    content.clear()


def read_rows(file: Path, columns: Sequence[str], n_before: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number (from 1) and columns of each row after the first `n_before`.

    Args:
        file: parquet, or Arrow as a stream or file of record batches.
        columns: names; no others are read.
        n_before: rows that are skipped.

    Raises:
        DamagedFileError: no such file format, or no such column.
        ValueError: the library is missing.
        OSError: the file cannot be opened.
    """
    need("pyarrow", f"{file.name}", extra="parquet")
    import pyarrow as pa

    with file.open("rb"):  # a missing file is no damaged one
        pass
    first = 1
    try:
        for batch in _batches(file, columns):
            skipped = min(max(n_before + 1 - first, 0), batch.num_rows)
            yield from enumerate(batch.slice(skipped).to_pylist(), first + skipped)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(f"damaged, or no {file.suffix[1:]}: {' '.join(str(error).split())[:200]}") from error


def _batches(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if file.suffix == ".parquet":
        with parquet.ParquetFile(file, memory_map=True) as table:
            _check(table.schema_arrow.names, columns)
            yield from table.iter_batches(ROWS_AT_ONCE, columns=list(columns))
        return
    with pa.memory_map(str(file)) as source:
        try:
            batches = pa.ipc.open_stream(source)
            found = iter(batches)
        except pa.ArrowInvalid:
            batches = pa.ipc.open_file(source)
            found = map(batches.get_batch, range(batches.num_record_batches))
        _check(batches.schema.names, columns)
        for batch in found:
            chosen = batch.select(list(columns))
            starts = range(0, chosen.num_rows, ROWS_AT_ONCE)
            yield from itertools.starmap(chosen.slice, ((start, ROWS_AT_ONCE) for start in starts))


def _check(there: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if column not in there:
            hint = nearest(column, there) or f"; there are {', '.join(there)}"
            raise DamagedFileError(f"no column {column!r}{hint}; --text-field names the column of the text")
