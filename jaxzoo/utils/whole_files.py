"""Files that are written whole or not at all: under another name, flushed to the disk, renamed."""

import contextlib
import glob
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def refuse_links(*places: Path) -> None:
    """Raises `ValueError` for what is neither a file nor a directory, at or below these places: a link leads to files
    of somebody else, a pipe or a device is read without end."""
    for place in places:
        for path in (place, *place.rglob("*")):
            if path.is_symlink():
                raise ValueError(f"{path} is a symbolic link, which no run made; put what it points to in its place")
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise ValueError(f"{path} is no regular file; put its content in its place")


def unfinished(path: Path, *, owned: bool = False) -> Path:
    """Place where a file is written before it is renamed, so that a killed process leaves no half of it.

    Args:
      path: the file, `<name>`.
      owned: no other process writes it: `<name>.tmp`, which the owner of a directory knows when a killed process has
        left it there. Otherwise `<name>.<8 digits>.tmp`, another place at each call.
    """
    return path.with_name(f"{path.name}.tmp" if owned else f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextlib.contextmanager
def replacing(path: Path, *, owned: bool = False) -> Iterator[Path]:
    """Gives the place to write a file in, which takes its name when the block ends, or is removed if it fails."""
    place = unfinished(path, owned=owned)
    for left in path.parent.glob(f"{glob.escape(path.name)}.????????.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 24 * 3600:  # of a killed process
                left.unlink()
    try:
        yield place
        with place.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(place, path)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str, *, owned: bool = False) -> None:
    """Writes a text file in UTF-8, with unchanged line ends."""
    with replacing(path, owned=owned) as place:
        place.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any, *, owned: bool = False) -> None:
    """Writes a JSON file: the same bytes for the same value."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n", owned=owned)


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Writes a file of JSON values, one per line."""
    with replacing(path) as place, place.open("w", encoding="utf-8", newline="") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
