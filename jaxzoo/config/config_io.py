"""Configs as JSON and back.

A dataclass becomes an object, a tuple a list. If the declared type leaves a choice (a union, an abstract config) the
object names its class: `{"type": "BaseConvConfig", ...}` for classes of this package, whose names are unique, and
`{"type": "module:OwnConfig", ...}` for others.
"""

import dataclasses
import importlib.metadata
import inspect
import sys
import typing
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from jaxzoo.config.checked import convert, fields_of, item_types, members, nearest, shorten

Json = Any
"""Argument of `json.dumps`: dict, list, str, int, float, bool, None."""

Config = TypeVar("Config")

TYPE = "type"
"""Key of the class name, where the declared type leaves a choice."""

STORED_MODULE = "__stored_module__"
"""Attribute of a module that names it in files, where its import name changes with its contents (config files)."""

ENTRY_POINTS = ("jaxzoo.mixers", "jaxzoo.tasks")
"""Groups in which installed packages declare their config classes, by name."""


class UnknownTypeError(ValueError):
    """No class of this name, which may be one of the user's own, has been imported."""


def to_json(config: Any) -> dict[str, Json]:
    """Returns a dataclass as nested dicts and lists. Raises `ValueError` for a value that JSON cannot express."""
    return _encode(config, type(config), type(config).__name__)


def from_json(value: Json, declared: type[Config]) -> Config:
    """Rebuilds a dataclass from the result of `to_json`; missing fields take their defaults.

    Raises `ValueError` with the dotted path: unknown field or class (`UnknownTypeError`), wrong type, missing field, or
    an error of the dataclass.
    """
    return convert(value, declared, declared.__name__, _named_class)


def completed(stored: Json, declared: type) -> Json:
    """Returns a stored config with defaults for fields of later versions; unreadable ones are unchanged."""
    try:
        return to_json(from_json(stored, declared))
    except ValueError:
        return stored


def first_difference(
    old: Json, new: Json, *, ignore: Collection[str] = (), path: str = ""
) -> tuple[str, Json, Json] | None:
    """Returns the first difference of two JSON values as (dotted path, old, new); None: they are equal.

    Paths in `ignore`, and all below them, may differ. `path` is the path of the values.
    """
    if path in ignore or old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        keys: Iterable[Any] = {**old, **new}
        pairs = [(key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(i, *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    else:
        return path, old, new
    for key, left, right in pairs:
        found = first_difference(left, right, ignore=ignore, path=f"{path}.{key}" if path else str(key))
        if found:
            return found
    return None


def _encode(value: Any, declared: Any, path: str) -> Json:
    if dataclasses.is_dataclass(value):
        fields = {
            name: _encode(getattr(value, name), hint, f"{path}.{name}")
            for name, (hint, _) in fields_of(type(value)).items()
        }
        return fields if declared is type(value) else {TYPE: _type_name(type(value)), **fields}
    tuples = [member for member in members(declared) if typing.get_origin(member) is tuple]
    if isinstance(value, tuple) and tuples:
        kinds = item_types(tuples[0], len(value))
        return [_encode(item, kinds[i], f"{path}.{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kinds = "a number, a string, a config or a declared tuple"
    raise ValueError(f"{path}={shorten(value)} must be {kinds}, to be kept in a file")


def _named_class(value: dict[str, Json], declared: list[type], path: str) -> tuple[type, dict[str, Json]]:
    """Returns the class that an object names, and its fields; without a name, the first declared class."""
    fields = dict(value)
    name = fields.pop(TYPE, None)
    first = declared[0]
    if TYPE not in value:
        if inspect.isabstract(first):
            raise ValueError(f"{path}: needs the key {TYPE!r}, the name of a {first.__name__}")
        return first, fields
    if isinstance(name, str) and ":" in name:  # imported if an installed package declares it; nothing else is
        for group in ENTRY_POINTS:
            for point in importlib.metadata.entry_points(group=group, value=name):
                point.load()
    known = {_type_name(c): c for cls in declared for c in _with_subclasses(cls) if not inspect.isabstract(c)}
    if not isinstance(name, str) or not dataclasses.is_dataclass(known.get(name)):
        raise UnknownTypeError(f"{path}: unknown type {shorten(name)}{nearest(str(name), known)}")
    return known[name], fields


def _type_name(cls: type) -> str:
    """Returns the name of a class in a file."""
    if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return cls.__name__
    module = getattr(sys.modules.get(cls.__module__), STORED_MODULE, cls.__module__)
    return f"{module}:{cls.__qualname__}"


def _with_subclasses(cls: type) -> list[type]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _with_subclasses(sub))]
