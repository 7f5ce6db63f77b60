"""Configs as JSON and back: what a run directory remembers, and what a resumed run is compared with.

A dataclass becomes an object of its fields, tuples become lists. Where the declared type leaves a choice (a union, an
abstract config of mixers, data or tasks) the object also names its class: `{"type": "BaseConvConfig", ...}`. A class
that has changed its fields reads those of before by `from_older(fields) -> fields`.
"""

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

Json = Any
"""What `json.dumps` takes: dict, list, str, int, float, bool, None."""

Config = TypeVar("Config")

TYPE = "type"
"""Key of the class name, where the declared type leaves a choice."""


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


def with_fields_of_today(value: Json, declared: type) -> Json:
    """What an older version kept of a dataclass, as this one does: fields that are new have their defaults.

    Itself where this version cannot read it.
    """
    try:
        return to_json(from_json(value, declared))
    except ValueError:
        return value


def first_difference(
    old: Json, new: Json, *, ignore: Collection[str] = (), path: str = ""
) -> tuple[str, Json, Json] | None:
    """The first place where two JSON values differ, as (dotted path, old, new); None where they are equal.

    Args:
      old: one value.
      new: the other.
      ignore: dotted paths that may differ, with all below them.
      path: where the two values stand.
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
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _encode(value: Any, declared: Any, path: str) -> Json:
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: _encode(getattr(value, name), hints[name], f"{path}.{name}") for name in names}
        return fields if declared is type(value) else {TYPE: type(value).__name__, **fields}
    tuples = [member for member in _members(declared) if typing.get_origin(member) is tuple]
    if isinstance(value, tuple) and tuples:
        items = enumerate(zip(value, _items(tuples[0], len(value)), strict=True))
        return [_encode(item, hint, f"{path}.{i}") for i, (item, hint) in items]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{path}={value!r} must be a number, a string, a config or a declared tuple, to be kept in a file")


def _decode(value: Json, declared: Any, path: str) -> Any:
    members = _members(declared)
    if isinstance(value, dict):
        return _decode_dataclass(value, members, path)
    for member in members:
        if isinstance(value, list) and typing.get_origin(member) is tuple:
            hints = _items(member, len(value))
            if len(hints) == len(value):
                items = enumerate(zip(value, hints, strict=True))
                return tuple(_decode(item, hint, f"{path}.{i}") for i, (item, hint) in items)
        if typing.get_origin(member) is typing.Literal and value in typing.get_args(member):
            return value
        if member is float and type(value) is int:
            return float(value)
        if type(value) is member:
            return value
    expected = " or ".join(getattr(m, "__name__", str(m)) if isinstance(m, type) else str(m) for m in members)
    raise ValueError(f"{path}={value!r} must be of type {expected}")


def _decode_dataclass(value: dict[str, Json], members: tuple[Any, ...], path: str) -> Any:
    classes = {c.__name__: c for member in members if isinstance(member, type) for c in _with_subclasses(member)}
    name = value.get(TYPE, next(iter(classes), ""))
    classes = {key: c for key, c in classes.items() if not inspect.isabstract(c)}
    if TYPE not in value and name not in classes:
        raise ValueError(f"{path}: needs the key {TYPE!r}, the name of a {name}")
    if not isinstance(name, str) or name not in classes or not dataclasses.is_dataclass(classes[name]):
        raise UnknownTypeError(f"{path}: unknown type {name!r}{nearest(str(name), classes)}")
    chosen = classes[name]
    hints = typing.get_type_hints(chosen)
    fields = {field.name: field for field in dataclasses.fields(chosen)}
    given = {key: item for key, item in value.items() if key != TYPE}
    if hasattr(chosen, "from_older"):
        given = chosen.from_older(given)
    for key in given:
        if key not in fields:
            raise ValueError(f"{path}: {name} has no field {key!r}{nearest(key, fields)}")
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    for key, field in fields.items():
        if key not in given and (field.default, field.default_factory) == missing:
            raise ValueError(f"{path}: {name} needs the field {key!r}")
    return chosen(**{key: _decode(item, hints[key], f"{path}.{key}") for key, item in given.items()})


def _members(declared: Any) -> tuple[Any, ...]:
    """The members of a union; of any other type, itself."""
    is_union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    return typing.get_args(declared) if is_union else (declared,)


def _items(declared: Any, n: int) -> tuple[Any, ...]:
    """The declared types of the `n` items of a tuple."""
    args = typing.get_args(declared)
    return args[:1] * n if args[-1:] == (Ellipsis,) else args


def _with_subclasses(cls: type) -> list[type]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _with_subclasses(sub))]
