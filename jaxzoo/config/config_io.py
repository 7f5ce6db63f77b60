"""Configs as JSON and back, for run directories and the comparison of a resumed run with them.

A dataclass becomes an object of its fields, tuples become lists. Where the declared type leaves a choice (a union, an
abstract config of mixers, data or tasks) the object also names its class: `{"type": "BaseConvConfig", ...}` for a class
of this package, where names are unique, and `{"type": "module:OwnConfig", ...}` for any other.
"""

import dataclasses
import difflib
import importlib.metadata
import inspect
import sys
import typing
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from jaxzoo.config.checked import item_types, members, shorten
from jaxzoo.config.json_files import decode_json

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
    """A dataclass as nested dicts and lists; `from_json` of the result and its class gives it back.

    Raises:
      ValueError: a value, named by its dotted path, of a kind that JSON does not know.
    """
    return _encode(config, type(config), type(config).__name__)


def from_json(value: Json, declared: type[Config]) -> Config:
    """Rebuilds the dataclass `declared` from `to_json`; a field that is left out takes its default.

    Raises:
      ValueError: an unknown field or class (with the nearest name; of a class `UnknownTypeError`), a value of the
        wrong type, a missing field, or what the dataclasses themselves refuse. The message begins with the dotted path.
    """
    return _decode(value, declared, declared.__name__)


def completed(stored: Json, declared: type) -> Json:
    """What `to_json` wrote, with defaults for fields that the version which wrote it did not have; where it cannot be
    read here, as it is."""
    try:
        return to_json(from_json(stored, declared))
    except ValueError:
        return stored


def first_difference(
    old: Json, new: Json, *, ignore: Collection[str] = (), path: str = ""
) -> tuple[str, Json, Json] | None:
    """The first place where two JSON values differ, as (dotted path, old, new); None where they are equal.

    `path` is where the two stand; dotted paths of `ignore` may differ, with all below them.
    """
    if path in ignore or old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        keys: Iterable[Any] = [*old, *(key for key in new if key not in old)]
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


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'd_model'?` for the known name closest to `name`; empty where none is close."""
    close = difflib.get_close_matches(name[:100], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """`unknown mixer 'retnet'; did you mean 'ret_net'?`, or with all known names where none is close."""
    return f"unknown {what} {shorten(name)}" + (nearest(name, known) or f"; there are {', '.join(sorted(known))}")


def _encode(value: Any, declared: Any, path: str) -> Json:
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: _encode(getattr(value, name), hints[name], f"{path}.{name}") for name in names}
        return fields if declared is type(value) else {TYPE: _type_name(type(value)), **fields}
    tuples = [member for member in members(declared) if typing.get_origin(member) is tuple]
    if isinstance(value, tuple) and tuples:
        items = enumerate(zip(value, item_types(tuples[0], len(value)), strict=True))
        return [_encode(item, hint, f"{path}.{i}") for i, (item, hint) in items]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kinds = "a number, a string, a config or a declared tuple"
    raise ValueError(f"{path}={shorten(value)} must be {kinds}, to be kept in a file")


def _decode(value: Json, declared: Any, path: str) -> Any:
    choices = members(declared)
    if isinstance(value, dict):
        chosen = _chosen_class(value, [member for member in choices if isinstance(member, type)], path)
        hints = typing.get_type_hints(chosen)
        fields = {field.name: field for field in dataclasses.fields(chosen)}
        given = {key: item for key, item in value.items() if key != TYPE}
        for key in given:
            if key not in fields:
                raise ValueError(f"{path}: {chosen.__name__} has no field {shorten(key)}{nearest(key, fields)}")
        missing = (dataclasses.MISSING, dataclasses.MISSING)
        for key, field in fields.items():
            if key not in given and (field.default, field.default_factory) == missing:
                raise ValueError(f"{path}: {chosen.__name__} needs the field {key!r}")
        return chosen(**{key: _decode(item, hints[key], f"{path}.{key}") for key, item in given.items()})
    for member in choices if isinstance(value, list) else ():
        kinds = item_types(member, len(value))
        if typing.get_origin(member) is tuple and len(kinds) == len(value):
            items = enumerate(zip(value, kinds, strict=True))
            return tuple(_decode(item, hint, f"{path}.{i}") for i, (item, hint) in items)
    return decode_json(value, declared, path)


def _chosen_class(value: dict[str, Json], declared: list[type], path: str) -> type:
    """The class that an object names; without a name, the first declared one."""
    name, first = value.get(TYPE), declared[0] if declared else None
    if TYPE not in value and first is not None and not inspect.isabstract(first):
        name = _type_name(first)
    elif TYPE not in value:
        raise ValueError(f"{path}: needs the key {TYPE!r}, the name of a {first.__name__ if first else 'class'}")
    if isinstance(name, str) and ":" in name:  # imported if an installed package declares it; nothing else is
        for group in ENTRY_POINTS:
            for point in importlib.metadata.entry_points(group=group, value=name):
                point.load()
    known = {_type_name(c): c for cls in declared for c in _with_subclasses(cls) if not inspect.isabstract(c)}
    if not isinstance(name, str) or not dataclasses.is_dataclass(known.get(name)):
        raise UnknownTypeError(f"{path}: unknown type {shorten(name)}{nearest(str(name), known)}")
    return known[name]


def _type_name(cls: type) -> str:
    """The name of a class in a file."""
    if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return cls.__name__
    module = getattr(sys.modules.get(cls.__module__), STORED_MODULE, cls.__module__)
    return f"{module}:{cls.__qualname__}"


def _with_subclasses(cls: type) -> list[type]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _with_subclasses(sub))]
