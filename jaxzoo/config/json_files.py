"""Reader of JSON files: bounded size and depth, declared fields, one line per mistake.

    class Note(NamedTuple):
        total: NonNegativeInt
        digests: dict[str, str]

    note = read_json(path / "note.json", Note, remedy="count again")
    # ValueError: counts/note.json: total=-3 must not be negative; count again

Declarations are those of `checked.convert`. NaN and Infinity, which Python writes as well, are read as floats.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from jaxzoo.config.checked import convert, shorten

MOST_BYTES = 2**26
"""Largest file, and longest line of a file of lines; Python's objects take up to 24 times as many bytes."""
MOST_DEPTH = 64
"""Deepest nesting of lists and objects."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of the text that a clone without git-lfs has in place of a large file."""

T = TypeVar("T")


def read_json(file: Path, declared: type[T], *, remedy: str = "") -> T:
    """Reads a JSON file.

    Args:
      file: UTF-8 text.
      declared: what it must hold; `dict`: an object of any fields.
      remedy: ends the message; what to do about a damaged file.

    Raises:
      ValueError: it is too large, no JSON, nested too deeply, or not as declared; one line with field, rule, remedy.
      OSError: it cannot be read; FileNotFoundError where it is absent.
    """
    return parse_json(read_regular(file), declared, where=str(file), remedy=remedy)


def read_regular(file: Path, most: int | None = None) -> bytes:
    """Reads a regular file of at most `most` bytes (None: `MOST_BYTES`). Raises `ValueError` for another one."""
    refuse_pointer(file)
    if file.stat().st_size > (most or MOST_BYTES):
        raise ValueError(f"{file}: must have at most {most or MOST_BYTES:,} bytes")
    return file.read_bytes()


def refuse_pointer(file: Path) -> None:
    """Raises `ValueError` for a Git LFS pointer, and for a pipe or a device, which would be read without end."""
    if not (file.is_file() or file.is_dir()) and file.exists():
        raise ValueError(f"{file} is no regular file; put its content in its place")
    with file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(f"{file} is a Git LFS pointer, not the file itself; run git lfs pull in its directory")


def read_json_lines(file: Path, declared: type[T], *, remedy: str = "") -> Iterator[T]:
    """Reads a file of JSON values, one per line, as `read_json` does; messages name the line as `file:3`.

    Blank lines, and a byte order mark at the beginning, are skipped.
    """
    refuse_pointer(file)
    with file.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(MOST_BYTES + 1), b""), 1):
            if line.removeprefix(codecs.BOM_UTF8).strip():
                yield parse_json(line, declared, where=f"{file}:{number}", remedy=remedy)


def parse_json(data: bytes | bytearray | str, declared: type[T], *, where: str, remedy: str = "") -> T:
    """Returns the value of a JSON text as `read_json` does; `where` begins the message, as the file's name would."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"must have at most {MOST_BYTES:,} bytes")
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_integer)
        _check_depth(value)
        return decode_json(value, declared)
    except UnicodeDecodeError as error:
        message = f"must be UTF-8, but byte {error.start} is not"
    except json.JSONDecodeError as error:
        message = f"must be JSON: {error}"
    except RecursionError:
        message = _TOO_DEEP
    except ValueError as error:
        message = str(error)
    raise ValueError(f"{where}: {message}" + (f"; {remedy}" if remedy else ""))


def decode_json(value: Any, declared: type[T], path: str = "") -> T:
    """Returns a value of `json.loads` as declared. Raises ValueError with field (below `path`), value and rule."""
    return convert(value, declared, path, lambda fields, classes, _: (classes[0], fields))


_TOO_DEEP = f"must be nested at most {MOST_DEPTH} levels deep"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object; a field that occurs twice hides one of its values from the reader."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"field {shorten(key)} must occur once")
        result[key] = value
    return result


def _integer(digits: str) -> int:
    if len(digits) > 300:  # more than a float holds
        raise ValueError(f"{shorten(digits)} has too many digits")
    return int(digits)


def _check_depth(value: Any) -> None:
    """Raises ValueError where lists and objects are nested deeper than `MOST_DEPTH`."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        nested = [each for each in level if isinstance(each, list | dict)]
        level = [item for each in nested for item in (each.values() if isinstance(each, dict) else each)]
    if level:
        raise ValueError(_TOO_DEEP)
