"""Checks of all config fields. Kills: a value of another type, or not finite, that passes."""

import dataclasses
import functools
import importlib
import json
import pkgutil
import typing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import jaxzoo.cli
from jaxzoo.bench.protocol import OneShapeConfig
from jaxzoo.cli.convert import ConvertCommand
from jaxzoo.cli.export import ExportCommand
from jaxzoo.config.checked import Checked, PositiveInt, Seed
from jaxzoo.config.config_io import from_json, to_json
from jaxzoo.mixers import AttentionConfig, MixerConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.presets import based_figure2
from jaxzoo.tasks.recall_data import Examples
from jaxzoo.train.config import RunConfig, TokenDataConfig

EXPERIMENT = RunConfig(model=LanguageModelConfig(pattern=(AttentionConfig(),)), data=based_figure2())

GIVEN = [
    Examples(task=MQARConfig(), n_examples=1),
    OneShapeConfig(task=MQARConfig(), vocab_size=8192, length=64, n_asked=8),
    EXPERIMENT,
    EXPERIMENT.model,
    EXPERIMENT.data,
    TokenDataConfig(path="x"),
    ExportCommand(run=Path(), out=Path()),
    ConvertCommand(run=Path(), to=Path()),
]
"""Configs that plain values do not make."""
PLAIN = {Path: Path(), str: "x", int: 1}


def subclasses(cls):
    return {cls, *(each for sub in cls.__subclasses__() for each in subclasses(sub))}


def example(cls):
    """A config of the class with its defaults, and plain values where it has none."""
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    required = {f.name for f in dataclasses.fields(cls) if (f.default, f.default_factory) == missing}
    hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if name in required}
    return cls(**{name: typing.get_args(hint)[0] if hint not in PLAIN else PLAIN[hint] for name, hint in hints.items()})


@functools.cache
def ours():
    """A config of every concrete class in the packages."""
    for module in pkgutil.iter_modules(jaxzoo.cli.__path__):
        importlib.import_module(f"jaxzoo.cli.{module.name}")
    classes = {c for c in subclasses(Checked) if c.__module__.startswith(("jaxzoo.", "benchmarks."))}
    concrete = [c for c in classes - {Checked} if not getattr(c, "__abstractmethods__", None)]
    made = {type(config): config for config in GIVEN}
    configs = [c.tiny() if issubclass(c, MixerConfig) else made[c] if c in made else example(c) for c in concrete]
    return sorted(configs, key=lambda config: (type(config).__module__, type(config).__name__))


def all_fields():
    """Config, name and declared type of every field of every config."""
    return [
        (config, field.name, typing.get_type_hints(type(config))[field.name])
        for config in ours()
        for field in dataclasses.fields(config)
    ]


def numeric(hint, kind):
    """Whether a declared type is `kind`, or a union or tuple that contains it."""
    if hint is kind:
        return True
    return any(numeric(part, kind) for part in typing.get_args(hint) if typing.get_origin(hint) is not Literal)


def test_every_number_must_be_one_that_a_machine_knows():
    """Kills: a NaN, an infinity or an integer of 70 bits in a field that has no rule of its own."""
    for config, name, hint in all_fields():
        plain = not any(typing.get_origin(h) is tuple for h in (hint, *typing.get_args(hint)))
        wrong = [float("nan"), float("inf"), -float("inf"), 1e300] if numeric(hint, float) else []
        wrong += [2**70, -(2**70)] if numeric(hint, int) else []
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^{type(config).__name__}\.{name}[.0]*=\S+ must [^\n]*$"):
                dataclasses.replace(config, **{name: value if plain else (value,)})


def test_every_field_must_be_of_its_declared_type():
    """Kills: a comparison of a string with a number, an object that no file can hold."""
    for config, name, hint in all_fields():
        wrong = [object(), {"a": 1}, b"x", *([] if numeric(hint, str) else ["64"])]
        wrong += [] if type(None) in typing.get_args(hint) else [None]
        wrong += [] if numeric(hint, bool) else [True] if numeric(hint, int) or numeric(hint, float) else []
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^{type(config).__name__}\.{name}=.* must be [^\n]*$"):
                dataclasses.replace(config, **{name: value})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Checked):
    width: PositiveInt | None = None
    rate: float = 0.5
    seeds: tuple[Seed, ...] = ()
    pair: tuple[int, Literal["a", "b"]] = (1, "a")
    anything: typing.Any = None

    def __post_init__(self) -> None:  # without super()
        self.require("rate", self.rate <= self.pair[0], f"must be at most {self.pair[0]}", "lower it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heir(Own):
    share: float = 0.0


def test_a_class_of_ones_own_is_checked_for_nothing():
    """Kills: a mixer of a user's own whose `__post_init__` forgets its base, and so all checks; a message without the
    field, or with the type of a union where the number was out of range."""
    for fields, message in (
        ({"width": "64"}, "width='64' must be an integer or None"),
        ({"width": 0}, "width=0 must be positive"),
        ({"width": 64.0}, "width=64.0 must be an integer or None"),
        ({"width": 2**31}, "width=2147483648 must be below 2^31"),
        ({"rate": "1"}, "rate='1' must be a number"),
        ({"rate": True}, "rate=True must be a number"),
        ({"rate": 10**400}, f"rate=1{'0' * 76}... must be finite"),
        ({"rate": 2}, "rate=2.0 must be at most 1; lower it"),
        ({"seeds": 3}, "seeds=3 must be a list or tuple"),
        ({"seeds": [1, -1]}, "seeds.1=-1 must be in [0, 2^32)"),
        ({"seeds": (2**32,)}, "seeds.0=4294967296 must be in [0, 2^32)"),
        ({"pair": (1,)}, "pair=(1,) must have 2 items"),
        ({"pair": (1, "c")}, "pair.1='c' must be one of 'a', 'b'"),
    ):
        for kind in (Own, Heir):
            with pytest.raises(ValueError) as raised:
                kind(**fields)
            assert str(raised.value) == f"{kind.__name__}.{message}"


def test_what_stands_for_another_type_is_put_in_its_place():
    """Kills: a list in a frozen config, which cannot be hashed and fails at the first save; an integer of numpy, which
    JSON does not know."""
    own = Own(width=np.int64(3), rate=0, seeds=[1, np.uint32(2)], pair=[2, "b"])
    assert own == Own(width=3, rate=0.0, seeds=(1, 2), pair=(2, "b"))
    assert [type(x) for x in (own.width, own.rate, own.seeds, own.seeds[1], own.pair)] == [
        int,
        float,
        tuple,
        int,
        tuple,
    ]
    assert hash(own) == hash(dataclasses.replace(own))
    model = LanguageModelConfig(pattern=[AttentionConfig()])  # type: ignore[arg-type]
    assert from_json(json.loads(json.dumps(to_json(model))), LanguageModelConfig) == model
