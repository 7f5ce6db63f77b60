"""Lines of plain and of zstd-compressed files, one after the other, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 2**16
"""Read at once."""
MOST_LINE_BYTES = 2**30
"""A file with a longer line is damaged."""
WINDOW_BYTES = 2**31
"""Largest window of a zstd frame that is read: what `zstd --long=31` makes."""


class DamagedFileError(ValueError):
    """The rest of a file cannot be read; the message is what is wrong with it, without its name."""


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file without their ends; a file named `.zst` is decompressed, whatever its number of frames.

    Raises:
        DamagedFileError: compressed data are damaged or end within a frame, or a line is longer than 1 GiB. All lines
            before the damage have been given by then.
        OSError: the file cannot be read.
    """
    parts: list[bytes] = []
    n_bytes = 0
    for chunk in _decompressed(file) if file.suffix == ".zst" else _chunks(file):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts, n_bytes = [], 0
        parts.append(rest)
        n_bytes += len(rest)
        if n_bytes > MOST_LINE_BYTES:
            raise DamagedFileError(f"a line is longer than {MOST_LINE_BYTES:,} bytes")
    if last := b"".join(parts):
        yield last


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _decompressed(file: Path) -> Iterator[bytes]:
    import zstandard

    frame = None
    try:
        for chunk in _chunks(file):
            while chunk:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise DamagedFileError(f"damaged zstd data: {error}") from error
    if frame is not None:
        raise DamagedFileError("its zstd data end within a frame: the file is truncated")
