"""Checks of config fields; a refusal is one line with class, field, value received, rule and remedy.

Every field is held to its declaration when the config is made, and in this file alone: the type (an integer stands for
a float, a list for a tuple), finiteness, and the range that an alias such as `PositiveInt` names. A class says in its
`__post_init__` only how its fields must fit together.
"""

import dataclasses
import functools
import inspect
import math
import numbers
import sys
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple

LARGEST = 3.4028234e38
"""Largest float32: what every float of a config becomes."""


class Rule(NamedTuple):
    """A range of numbers, ends included; stands in `Annotated` after the type."""

    text: str
    """Requirement, such as `must be positive`."""
    low: float = -math.inf
    """Smallest."""
    high: float = math.inf
    """Largest."""
    excluded: tuple[float, ...] = ()
    """Ends that do not belong to it."""

    def holds(self, value: float) -> bool:
        """Whether the value is in the range; NaN is in none."""
        return self.low <= value <= self.high and value not in self.excluded


_INT32 = Rule("must be below 2^31", high=2**31 - 1)
_ALWAYS = {
    int: (Rule("must be a number of 64 bits", -(2**63), 2**63 - 1),),
    float: (
        Rule("must be finite", -sys.float_info.max, sys.float_info.max),
        Rule("must be finite as float32", -LARGEST, LARGEST),
    ),
}
_NOUNS: dict[Any, str] = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}

PositiveInt = Annotated[int, Rule("must be positive", 1), _INT32]
NonNegativeInt = Annotated[int, Rule("must not be negative", 0), _INT32]
Count = Annotated[int, Rule("must not be negative", 0)]
PositiveFloat = Annotated[float, Rule("must be positive", 0, excluded=(0,))]
NonNegativeFloat = Annotated[float, Rule("must not be negative", 0)]
Fraction = Annotated[float, Rule("must be in [0, 1]", 0, 1)]
FractionBelowOne = Annotated[float, Rule("must be in [0, 1)", 0, 1, excluded=(1,))]
FractionAboveZero = Annotated[float, Rule("must be in (0, 1]", 0, 1, excluded=(0,))]
Seed = Annotated[int, Rule("must be in [0, 2^32)", 0, 2**32 - 1)]


class Checked:
    """Base of config dataclasses. Whatever a subclass does in `__post_init__`, its fields were checked before."""

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

    def require(self, field: str, holds: bool, rule: str, remedy: str = "") -> None:
        """Raises `ValueError` with class, field, value received, rule and remedy unless `holds`."""
        if not holds:
            raise ValueError(_refusal(self, field, getattr(self, field), rule, remedy))


class _Refused(Exception):
    """A value that its declaration does not admit."""

    def __init__(self, value: Any, rule: str, *, is_of_type: bool, where: str = ""):
        super().__init__(rule)
        self.value, self.rule, self.is_of_type, self.where = value, rule, is_of_type, where


def _check_fields(config: Any) -> None:
    """Holds every field to its declaration, and puts in place what stands for another type."""
    declarations = _declarations(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        try:
            taken = _taken(value, declarations[field.name])
        except _Refused as refused:
            raise ValueError(_refusal(config, field.name + refused.where, refused.value, refused.rule)) from None
        if taken is not value:
            object.__setattr__(config, field.name, taken)


@functools.cache
def _declarations(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _refusal(config: Any, field: str, value: Any, rule: str, remedy: str = "") -> str:
    return f"{type(config).__name__}.{field}={shorten(value)} {rule}" + (f"; {remedy}" if remedy else "")


def shorten(value: Any) -> str:
    """Returns the value as error messages show it, in at most 80 characters."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _taken(value: Any, declared: Any) -> Any:
    """The value as the declared type has it; raises `_Refused`. Declarations of other kinds admit everything."""
    rules: tuple[Rule, ...] = ()
    if typing.get_origin(declared) is Annotated:
        declared, *notes = typing.get_args(declared)
        rules = tuple(note for note in notes if isinstance(note, Rule))
    origin = typing.get_origin(declared)
    if declared in (int, float):
        kind: Any = numbers.Integral if declared is int else numbers.Real
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _Refused(value, f"must be {noun(declared)}", is_of_type=False)
        for rule in (*_ALWAYS[declared], *rules):
            if not rule.holds(value):
                raise _Refused(value, rule.text, is_of_type=True)
        return value if isinstance(value, declared) else declared(value)
    if len(members(declared)) > 1:
        return _one_of(value, members(declared))
    if origin is tuple:
        return _tuple(value, declared)
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in typing.get_args(declared))
    else:
        can_tell = inspect.isclass(declared) and declared is not Any and not getattr(declared, "_is_protocol", False)
        fits = not can_tell or isinstance(value, declared)  # type: ignore[arg-type]
    if not fits:
        raise _Refused(value, f"must be {noun(declared)}", is_of_type=False)
    return value


def _one_of(value: Any, members: tuple[Any, ...]) -> Any:
    """The first member that admits the value; else what the member of its type says."""
    refusals: list[_Refused] = []
    for member in members:
        try:
            return _taken(value, member)
        except _Refused as refused:
            refusals.append(refused)
    rule = f"must be {' or '.join(map(noun, members))}"
    raise next((each for each in refusals if each.is_of_type), _Refused(value, rule, is_of_type=False))


def _tuple(value: Any, declared: Any) -> tuple:
    if not isinstance(value, tuple | list):
        raise _Refused(value, "must be a tuple", is_of_type=False)
    kinds = item_types(declared, len(value))
    if len(kinds) != len(value):
        raise _Refused(value, f"must have {len(kinds)} items", is_of_type=True)
    items = []
    for i, (item, kind) in enumerate(zip(value, kinds, strict=True)):
        try:
            items.append(_taken(item, kind))
        except _Refused as refused:
            where = f".{i}{refused.where}"
            raise _Refused(refused.value, refused.rule, is_of_type=True, where=where) from None
    if isinstance(value, tuple) and all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return tuple(items)


def members(declared: Any) -> tuple[Any, ...]:
    """Returns the members of a union; of any other type, itself."""
    is_union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    return typing.get_args(declared) if is_union else (declared,)


def item_types(declared: Any, n: int) -> tuple[Any, ...]:
    """Returns the declared types of the `n` items of a tuple."""
    args = typing.get_args(declared)
    return args[:1] * n if args[-1:] == (Ellipsis,) else args


def noun(declared: Any) -> str:
    """Returns the declared type as error messages name it."""
    if typing.get_origin(declared) is Annotated:
        declared = typing.get_args(declared)[0]
    if typing.get_origin(declared) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(declared)))}"
    if typing.get_origin(declared) is tuple:
        return "a tuple"
    if declared is type(None):
        return "None"
    name = getattr(declared, "__name__", str(declared))
    return _NOUNS.get(declared) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
