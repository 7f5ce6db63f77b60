"""Validation of values by their declared types, with one line per error: field, value, rule and remedy.

`convert` is used by `Checked` for fields of configs, by `json_files` for files and by `config_io` for stored configs.
A declaration is a class, a number with a range such as `PositiveInt`, a `Literal`, a union, `tuple[X, ...]`, `list[X]`,
`dict[str, X]` or `Any`.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

LARGEST = 3.4028234e38
"""Largest float32: what every float of a config becomes."""


class Rule(NamedTuple):
    """A range of numbers, ends included; stands in `Annotated` after the type."""

    text: str
    """Requirement, such as `must be positive`."""
    low: float = -math.inf
    high: float = math.inf
    excluded: tuple[float, ...] = ()
    """Ends that do not belong to it."""

    def holds(self, value: float) -> bool:
        """Whether the value is in the range; NaN is in none."""
        return self.low <= value <= self.high and value not in self.excluded


_INT32 = Rule("must be below 2^31", high=2**31 - 1)
_FINITE = {
    int: (Rule("must be a number of 64 bits", -(2**63), 2**63 - 1),),
    float: (
        Rule("must be finite", -sys.float_info.max, sys.float_info.max),
        Rule("must be finite as float32", -LARGEST, LARGEST),
    ),
}
"""Rules of all numbers of a config; a file may hold NaN and infinity."""
_NOUNS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a string",
    tuple: "a list or tuple",
    list: "a list",
    dict: "an object",
    type(None): "None",
}

PositiveInt = Annotated[int, Rule("must be positive", 1), _INT32]
NonNegativeInt = Annotated[int, Rule("must not be negative", 0), _INT32]
Count = Annotated[int, Rule("must not be negative", 0)]
PositiveFloat = Annotated[float, Rule("must be positive", 0, excluded=(0,))]
NonNegativeFloat = Annotated[float, Rule("must not be negative", 0)]
Fraction = Annotated[float, Rule("must be in [0, 1]", 0, 1)]
FractionBelowOne = Annotated[float, Rule("must be in [0, 1)", 0, 1, excluded=(1,))]
FractionAboveZero = Annotated[float, Rule("must be in (0, 1]", 0, 1, excluded=(0,))]
Seed = Annotated[int, Rule("must be in [0, 2^32)", 0, 2**32 - 1)]


class _PlainSignature:
    """Descriptor: the signature of a config's class with plain types, `int` where a field declares `PositiveInt`."""

    def __get__(self, _: Any, cls: type) -> inspect.Signature:
        try:
            plain = typing.get_type_hints(cls)
        except NameError:  # types that only the module of a user's function knows
            plain = {}
        found = []
        for field in dataclasses.fields(cls):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            kind: Any = inspect.Parameter.KEYWORD_ONLY
            annotation = plain.get(field.name, field.type)
            found.append(inspect.Parameter(field.name, kind, default=default, annotation=annotation))
        return inspect.Signature(found)


class Checked:
    """Base of config dataclasses. Whatever a subclass does in `__post_init__`, its fields were checked before."""

    __signature__ = _PlainSignature()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own_rules: Any = cls.__post_init__

        @functools.wraps(own_rules)
        def __post_init__(self: Any, *args: Any) -> None:
            if type(self) is cls:  # not again where a subclass calls super().__post_init__()
                _check_fields(self)
            own_rules(self, *args)

        cls.__post_init__ = __post_init__

    def __post_init__(self) -> None:
        """Subclasses check here how their fields fit together, each of which has its declared type and range."""

    def require(self, field: str, holds: bool, rule: str, remedy: str = "", value: Any = None) -> None:
        """Raises `ValueError` with class, field, value, rule and remedy unless `holds`.

        `value` is the value that None stands for; default: that of the field.
        """
        if not holds:
            received = getattr(self, field) if value is None else value
            message = _refusal(received, f"{type(self).__name__}.{field}", rule)
            raise ValueError(message + (f"; {remedy}" if remedy else ""))


def _check_fields(config: Any) -> None:
    """Holds every field to its declaration, and puts in place what stands for another type."""
    for name, (declared, _) in fields_of(type(config)).items():
        value = getattr(config, name)
        taken = convert(value, declared, f"{type(config).__name__}.{name}")
        if taken is not value:
            object.__setattr__(config, name, taken)


ReadObject = Callable[[dict[str, Any], list[type], str], tuple[type, dict[str, Any]]]
"""Class and fields of a JSON object, from the object, the declared classes and the path; raises `ValueError`."""


def convert(value: Any, declared: Any, path: str = "", read_object: ReadObject | None = None) -> Any:
    """Returns the value as declared: an integer becomes a float, a list a tuple.

    Args:
      declared: its type; kinds of declarations that the module docstring does not list accept everything.
      path: dotted path of the value, for messages.
      read_object: for values from JSON, whose objects become dataclasses and NamedTuples; None: a Python value, whose
        dicts and lists may have any items.

    Raises:
      ValueError: one line with path, value and rule.
    """
    try:
        return _converted(value, declared, path, read_object)
    except _Refused as refused:
        raise ValueError(str(refused)) from None


def _converted(value: Any, declared: Any, path: str, read_object: ReadObject | None) -> Any:
    declared, rules = _without_rules(declared)
    choices = members(declared)
    origin = typing.get_origin(declared) or declared
    if declared is Any:
        return value
    if read_object and isinstance(value, dict):
        classes = [each for each in choices if isinstance(each, type) and each.__module__ != "builtins"]
        if classes:
            chosen, given = read_object(value, classes, path)
            return _record(chosen, given, path, read_object)
    if len(choices) > 1:
        return _one_of(value, choices, path, read_object)
    if declared in (int, float):
        return _number(value, declared, path, rules if read_object else (*_FINITE[declared], *rules))
    if origin is tuple or (origin is list and read_object):
        return _items(value, declared, path, read_object)
    if origin is dict and isinstance(value, dict) and read_object:
        item = (*typing.get_args(declared), Any, Any)[1]
        return {key: _converted(each, item, _join(path, key), read_object) for key, each in value.items()}
    if read_object and _is_record(declared):
        names = getattr(declared, "_fields", None)
        if isinstance(value, list) and names and len(names) == len(value):
            return _record(declared, dict(zip(names, value, strict=True)), path, read_object)
        _refuse(value, path, "must be an object")
    if not _is_instance(value, declared):
        _refuse(value, path, f"must be {_noun(declared)}")
    return value


class _Refused(ValueError):
    """A value that its declaration does not admit."""

    def __init__(self, message: str, *, is_of_type: bool):
        super().__init__(message)
        self.is_of_type = is_of_type


def _refuse(value: Any, path: str, rule: str, *, is_of_type: bool = False) -> NoReturn:
    raise _Refused(_refusal(value, path, rule), is_of_type=is_of_type)


def _refusal(value: Any, path: str, rule: str) -> str:
    return f"{path}={shorten(value)} {rule}" if path else f"{shorten(value)} {rule}"


def _number(value: Any, declared: type, path: str, rules: Iterable[Rule]) -> Any:
    kind: Any = numbers.Integral if declared is int else numbers.Real
    if not isinstance(value, kind) or isinstance(value, bool):
        _refuse(value, path, f"must be {_noun(declared)}")
    for rule in rules:
        if not rule.holds(value):
            _refuse(value, path, rule.text, is_of_type=True)
    return value if isinstance(value, declared) else declared(value)


def _one_of(value: Any, choices: Sequence[Any], path: str, read_object: ReadObject | None) -> Any:
    """Returns what the first member that admits the value gives; else raises what the member of its type says."""
    refusals: list[ValueError] = []
    for member in choices:
        try:
            return _converted(value, member, path, read_object)
        except ValueError as error:
            refusals.append(error)
    for refusal in refusals:
        if not isinstance(refusal, _Refused) or refusal.is_of_type:
            raise refusal
    _refuse(value, path, f"must be {' or '.join(map(_noun, choices))}")


def _items(value: Any, declared: Any, path: str, read_object: ReadObject | None) -> Any:
    """Returns a list or tuple with items as declared; the value itself where they are that already."""
    kind = typing.get_origin(declared) or declared
    if not isinstance(value, (list, tuple) if kind is tuple else list):
        _refuse(value, path, f"must be {_noun(declared)}")
    kinds = item_types(declared, len(value))
    if len(kinds) != len(value):
        _refuse(value, path, f"must have {len(kinds)} items", is_of_type=True)
    items = []
    for i, item in enumerate(value):
        try:
            items.append(_converted(item, kinds[i], _join(path, str(i)), read_object))
        except _Refused as refused:
            raise _Refused(str(refused), is_of_type=True) from None
    is_same = isinstance(value, kind) and all(new is old for new, old in zip(items, value, strict=True))
    return value if is_same else kind(items)


def _record(cls: Any, given: dict[str, Any], path: str, read_object: ReadObject) -> Any:
    """Returns the dataclass or NamedTuple of an object."""
    if not _is_record(cls):
        _refuse(given, path, f"must be {_noun(cls)}")
    fields = fields_of(cls)
    for key in given:
        if key not in fields:
            place = f"{path}: " if path else ""
            raise ValueError(f"{place}{cls.__name__} has no field {among(key, fields)}")
    for key, (_, is_required) in fields.items():
        if is_required and key not in given:
            raise ValueError(f"{_join(path, key)} is missing")
    return cls(**{key: _converted(each, fields[key][0], _join(path, key), read_object) for key, each in given.items()})


def _is_record(declared: Any) -> bool:
    return isinstance(declared, type) and (dataclasses.is_dataclass(declared) or hasattr(declared, "_fields"))


@functools.cache
def fields_of(cls: Any) -> dict[str, tuple[Any, bool]]:
    """Declared type of every field of a dataclass or NamedTuple, and whether it has no default."""
    hints = typing.get_type_hints(cls, include_extras=True)
    parameters = inspect.signature(cls).parameters.items()
    return {name: (hints[name], field.default is field.empty) for name, field in parameters}


def _is_instance(value: Any, declared: Any) -> bool:
    if typing.get_origin(declared) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(declared))
    kind = origin if (origin := typing.get_origin(declared)) in (dict, list) else declared
    can_tell = inspect.isclass(kind) and not getattr(kind, "_is_protocol", False)
    return not can_tell or isinstance(value, kind)


def _without_rules(declared: Any) -> tuple[Any, Sequence[Rule]]:
    """Declared type without `Annotated`, and its rules."""
    if typing.get_origin(declared) is not Annotated:
        return declared, ()
    kind, *notes = typing.get_args(declared)
    return kind, [note for note in notes if isinstance(note, Rule)]


def members(declared: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or a tuple of the type itself."""
    is_union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    return typing.get_args(declared) if is_union else (declared,)


def item_types(declared: Any, n: int) -> tuple[Any, ...]:
    args = typing.get_args(declared) or (Any, ...)
    is_any_length = args[-1] is Ellipsis or typing.get_origin(declared) is list
    return args[:1] * n if is_any_length else args


def _noun(declared: Any) -> str:
    """Returns the declared type as error messages name it."""
    declared, _ = _without_rules(declared)
    if typing.get_origin(declared) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(declared)))}"
    declared = typing.get_origin(declared) or declared
    name = getattr(declared, "__name__", str(declared))
    return _NOUNS.get(declared) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _join(path: str, name: str) -> str:
    name = name if len(name) <= 80 else name[:77] + "..."
    return f"{path}.{name}" if path else name


def shorten(value: Any) -> str:
    """Returns the value as error messages show it, in at most 80 characters."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'd_model'?` for the known name closest to `name`; empty where none is close."""
    close = difflib.get_close_matches(name[:100], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest_path(path: Path | str) -> str:
    """Returns `; did you mean 'notes/a.txt'?` for the entry of the same directory with the closest name, or empty."""
    place = Path(path).expanduser()
    try:
        close = difflib.get_close_matches(place.name[:100], os.listdir(place.parent), n=1)
    except OSError:
        return ""
    return f"; did you mean {str(place.parent / close[0])!r}?" if close else ""


def among(name: str, known: Collection[str]) -> str:
    """Returns `'retnet'; did you mean 'ret_net'?`, or the name with all known ones where none is close."""
    return shorten(name) + (nearest(name, known) or f"; there are {', '.join(sorted(known))}")


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Returns `unknown mixer 'retnet'; did you mean 'ret_net'?`."""
    return f"unknown {what} {among(name, known)}"
