"""Reader of JSON files: bounded size and depth, declared fields, one line per mistake.

    class Note(NamedTuple):
        total: NonNegativeInt
        digests: dict[str, str]

    note = read_json(path / "note.json", Note, remedy="count again")
    # ValueError: counts/note.json: total=-3 must not be negative; count again

A declaration is a dataclass or NamedTuple (an object of just these fields; of a NamedTuple also the list of their
values), `dict[str, X]`, `list[X]`, `tuple[X, ...]`, a union, a `Literal`, `Any`, `str`, `bool`, None, or a number, with
rules of `checked.py` where it has a range. NaN and Infinity, which Python writes as well, are read as floats.
"""

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from jaxzoo.config.checked import Rule, members, noun, shorten

MOST_BYTES = 2**26
"""Largest file, and longest line of a file of lines; Python's objects take up to 24 times as many bytes."""
MOST_DEPTH = 64
"""Deepest nesting of lists and objects."""

T = TypeVar("T")


def read_json(file: Path, declared: type[T], *, remedy: str = "") -> T:
    """Reads a JSON file.

    Args:
        file: UTF-8 text.
        declared: what it must hold; see the module docstring. `dict`: an object of any fields.
        remedy: ends the message; what to do about a damaged file.

    Raises:
        ValueError: it is too large, no JSON, nested too deeply, or not as declared; one line with field, rule, remedy.
        OSError: it cannot be read; FileNotFoundError where it is absent.
    """
    data = bytearray()
    with file.open("rb") as stream:  # in parts: `read(n)` takes n bytes of memory at once
        while len(data) <= MOST_BYTES and (part := stream.read(2**16)):
            data += part
    return parse_json(data, declared, where=str(file), remedy=remedy)


def read_json_lines(file: Path, declared: type[T], *, remedy: str = "") -> Iterator[T]:
    """Reads a file of JSON values, one per line, as `read_json` does; messages name the line as `file:3`."""
    with file.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(MOST_BYTES + 1), b""), 1):
            yield parse_json(line, declared, where=f"{file}:{number}", remedy=remedy)


def parse_json(data: bytes | bytearray | str, declared: type[T], *, where: str, remedy: str = "") -> T:
    """Returns the value of a JSON text as `read_json` does; `where` begins the message, as the file's name would."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"must have at most {MOST_BYTES:,} bytes")
        text = data if isinstance(data, str) else data.decode("utf-8")
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
    return cast(T, _decode(value, declared, path))


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


def _decode(value: Any, declared: Any, path: str) -> Any:
    """Returns the value as declared; `path` is its dotted place in the file."""
    rules: list[Any] = []
    if typing.get_origin(declared) is Annotated:
        declared, *rules = typing.get_args(declared)
    origin, arguments = typing.get_origin(declared) or declared, typing.get_args(declared)
    if declared is Any:
        return value
    if len(members(declared)) > 1:
        refusals = []
        for member in arguments:
            try:
                return _decode(value, member, path)
            except ValueError as error:
                refusals += [error] if member is not type(None) else []
        what = " or ".join(map(noun, arguments))
        raise refusals[0] if len(refusals) == 1 else _refusal(value, path, f"must be {what}")
    if dataclasses.is_dataclass(declared) or hasattr(declared, "_fields"):
        return _decode_fields(value, declared, path)
    if origin is dict and isinstance(value, dict):
        item = arguments[1] if arguments else Any
        return {key: _decode(each, item, _join(path, key)) for key, each in value.items()}
    if origin in (list, tuple) and isinstance(value, list):
        arguments = arguments or (Any, ...)
        kinds = arguments[:1] * len(value) if origin is list or arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            items = enumerate(zip(value, kinds, strict=True))
            return origin(_decode(each, kind, _join(path, str(i))) for i, (each, kind) in items)
    if origin is Literal and any(type(value) is type(choice) and value == choice for choice in arguments):
        return value
    if declared is float and type(value) is int:
        value = float(value)
    if declared in (str, bool, int, float, type(None)) and type(value) is declared:
        for rule in rules:
            if isinstance(rule, Rule) and not rule.holds(cast(float, value)):
                raise _refusal(value, path, rule.text)
        return value
    what = {list: "a list", tuple: "a list", dict: "an object"}.get(origin) or noun(declared)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        what += f" of {len(arguments)} items"
    raise _refusal(value, path, f"must be {what}")


def _decode_fields(value: Any, declared: Any, path: str) -> Any:
    """Returns the dataclass or NamedTuple of an object, or the NamedTuple of a list."""
    hints, fields = typing.get_type_hints(declared, include_extras=True), inspect.signature(declared).parameters
    if isinstance(value, list) and issubclass(declared, tuple) and len(value) == len(fields):
        value = dict(zip(fields, value, strict=True))
    if not isinstance(value, dict):
        raise _refusal(value, path, "must be an object")
    for name in value:
        if name not in fields:
            raise ValueError(f"{_join(path, name)} is unknown; the fields are {', '.join(fields)}")
    for name, field in fields.items():
        if name not in value and field.default is field.empty:
            raise ValueError(f"{_join(path, name)} is missing")
    return declared(**{name: _decode(each, hints[name], _join(path, name)) for name, each in value.items()})


def _join(path: str, name: str) -> str:
    name = name if len(name) <= 80 else name[:77] + "..."
    return f"{path}.{name}" if path else name


def _refusal(value: Any, path: str, rule: str) -> ValueError:
    return ValueError(f"{path}={shorten(value)} {rule}" if path else f"{shorten(value)} {rule}")
