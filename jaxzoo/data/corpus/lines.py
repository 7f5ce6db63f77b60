"""Lines of plain and of zstd-compressed files, one after the other, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 2**16
"""Bytes that are read, or split into lines, at once."""
COMPRESSED_BYTES = 2**9
"""Bytes that are decompressed at once; zstd makes at most 32,768 times as many of them, 16 MiB."""
HELD_BYTES = 2**22
"""Decompressed bytes of a frame that are held back until the next `CHUNK_BYTES` of the file are known to be whole."""
MOST_LINE_BYTES = 2**28
"""Longest line; a file with a longer one is damaged."""
WINDOW_BYTES = 2**31
"""Largest window of a zstd frame that is read: what `zstd --long=31` makes."""


class DamagedFileError(ValueError):
    """The rest of a file cannot be read; the message is what is wrong with it, without its name."""


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file without their ends; a file named `.zst` is decompressed, whatever its number of frames.

    Raises:
        DamagedFileError: compressed data are damaged or end within a frame, or a line is longer than 256 MiB. All lines
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

    frame, held = None, bytearray()
    try:
        for chunk in _chunks(file):
            for start in range(0, len(chunk), COMPRESSED_BYTES):
                part = chunk[start : start + COMPRESSED_BYTES]
                while part:
                    frame = frame or zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
                    held += frame.decompress(part)
                    part = b""
                    if frame.eof:
                        part, frame = frame.unused_data, None
                    if frame is None or len(held) > HELD_BYTES:
                        yield from _cut(held)
            yield from _cut(held)
    except zstandard.ZstdError as error:
        raise DamagedFileError(f"damaged zstd data: {error}") from error
    if frame is not None:
        raise DamagedFileError("its zstd data end within a frame: the file is truncated")


def _cut(content: bytearray) -> Iterator[bytes]:
    """Gives the content in chunks, and empties it."""
    for start in range(0, len(content), CHUNK_BYTES):
        yield bytes(content[start : start + CHUNK_BYTES])
    content.clear()
