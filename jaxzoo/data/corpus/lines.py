"""Readers in bounded memory: lines of plain and compressed files; rows of parquet and Arrow files."""

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from jaxzoo.config.checked import nearest
from jaxzoo.config.json_files import refuse_pointer
from jaxzoo.utils.extras import need

CHUNK_BYTES = 2**16
"""Bytes per read."""
ZSTD_BYTES = 2**9
"""Bytes that are decompressed at once; zstd expands them at most 32,768 times, to 16 MiB."""
HELD_BYTES = 2**22
"""Decompressed bytes of a zstd frame that are held until its end, where a checksum shows damage."""
MOST_LINE_BYTES = 2**26
"""Longest line, 64 MiB."""
WINDOW_BYTES = 2**31
"""Largest window of a zstd frame, that of `zstd --long=31`."""
COMPRESSED = (".zst", ".gz", ".bgz", ".bz2")
TABLES = (".parquet", ".arrow")
ROWS_AT_ONCE = 256
"""Rows of parquet that are decoded at once, if `BYTES_AT_ONCE` allows it."""
BYTES_AT_ONCE = 2**29
"""Most bytes that these rows can take, whatever the file holds."""


class DamagedFileError(ValueError):
    """Error after which the rest of a file cannot be read; the message lacks the file's name."""


class TextDocument(NamedTuple):
    """One document."""

    text: str
    subset: str
    """Name of the subset; empty if the corpus has none."""
    split: str = ""
    """Split named by the document itself; empty: the split of its file."""
    is_repaired: bool = False
    """Whether U+FFFD replaces bytes that are not UTF-8."""


@contextlib.contextmanager
def reading(file: Path) -> Iterator[io.BufferedReader]:
    """Opens a file, decompressed by its suffix, without a byte order mark. Raises `DamagedFileError` in the block if
    the compressed data are damaged or truncated."""
    refuse_pointer(file)
    kind = file.suffix[1:]
    try:
        with _opened(file) as stream:
            if stream.peek(3).startswith(codecs.BOM_UTF8):
                stream.read(3)
            yield stream
    except EOFError as error:
        raise DamagedFileError(f"its {kind} data end early: the file is truncated") from error
    except (OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedFileError(f"damaged {kind} data: {error}") from error


def _opened(file: Path) -> io.BufferedReader:
    if file.suffix == ".zst":
        return io.BufferedReader(_ZstdFile(file), CHUNK_BYTES)
    kinds = {".gz": gzip.open, ".bgz": gzip.open, ".bz2": bz2.open}
    return cast(io.BufferedReader, kinds.get(file.suffix, open)(file, "rb"))


class _ZstdFile(io.RawIOBase):
    """Content of the frames of a zstd file. zstandard's own reader does not notice truncation."""

    def __init__(self, file: Path):
        import zstandard

        self._source = file.open("rb")
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._unused = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        if not self._content:
            self._content = memoryview(b"")  # frees the content that was read
            self._content = memoryview(self._next())
        n = min(len(buffer), len(self._content))
        buffer[:n] = self._content[:n]
        self._content = self._content[n:]
        return n

    def _next(self) -> bytes | bytearray:
        """Returns the next content: of whole frames, or more than `HELD_BYTES`; empty at the end of the file."""
        held = bytearray()
        while part := self._unused or self._source.read(ZSTD_BYTES):
            self._frame = self._frame or self._decompressor.decompressobj()
            self._unused = b""
            try:
                held += self._frame.decompress(part)
            except self._error as error:
                raise zlib.error(str(error)) from error
            if self._frame.eof:
                self._unused = self._frame.unused_data
                self._frame = None
            if held and (self._frame is None or len(held) > HELD_BYTES):
                return held
        if self._frame is not None:
            raise EOFError
        return b""


def read_lines(file: Path) -> Iterator[bytes | None]:
    """Yields the lines of a file without their ends, None for a line longer than `MOST_LINE_BYTES`. Raises
    `DamagedFileError` as `reading` does, after the lines before the damage."""
    parts: list[bytes] = []
    n_bytes = 0
    with reading(file) as stream:
        while part := stream.readline(CHUNK_BYTES):
            text = part.removesuffix(b"\n")
            n_bytes += len(text)
            parts.append(text)
            if n_bytes > MOST_LINE_BYTES:
                parts.clear()
            if text != part:
                yield b"".join(parts) if n_bytes <= MOST_LINE_BYTES else None
                parts = []
                n_bytes = 0
    if n_bytes:
        yield b"".join(parts) if n_bytes <= MOST_LINE_BYTES else None


def read_rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number (from 1) and `columns` of each row of a parquet file, or an Arrow stream or file, as Hugging Face
    `datasets` writes them. Raises `DamagedFileError` for another format or an absent column, `ValueError` if pyarrow is
    missing, `OSError` if the file cannot be opened."""
    need("pyarrow", f"{file.name}", extra="parquet")
    import pyarrow as pa

    refuse_pointer(file)  # a missing file is no damaged one
    number = 0
    try:
        for batch in _batches(file, columns):
            for row in range(batch.num_rows):  # one after the other: all may be one entry of a dictionary
                number += 1
                yield number, {name: batch.column(name)[row].as_py() for name in columns}
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DamagedFileError(f"damaged, or no {file.suffix[1:]}: {reason}") from error


def _batches(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if file.suffix == ".parquet":
        with parquet.ParquetFile(file, memory_map=True) as table:
            _check(table.schema_arrow.names, columns)
            groups = (table.metadata.row_group(i).total_byte_size for i in range(table.num_row_groups))
            largest = max(groups, default=0)  # all rows may be one entry of a dictionary, at most as long as its group
            rows = min(max(BYTES_AT_ONCE // max(largest, 1), 1), ROWS_AT_ONCE)
            yield from table.iter_batches(rows, columns=list(columns))
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
