"""Every field of every config is held to its declaration: type, finiteness and range."""

import dataclasses
import json
import typing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import benchmarks.generation.__main__
import benchmarks.mixers_cpu
import benchmarks.sweep_cpu
import benchmarks.token_input
import jaxzoo.cli.data_bigrams
import jaxzoo.cli.data_build
import jaxzoo.cli.data_demo_pile
import jaxzoo.cli.data_recall_statistics
import jaxzoo.cli.data_tokenize
import jaxzoo.cli.data_train_tokenizer
import jaxzoo.cli.generate
import jaxzoo.cli.tasks
import jaxzoo.cli.tasks_records
from jaxzoo.checked import Checked, PositiveInt, Seed
from jaxzoo.config import ExperimentConfig, OptimizerConfig, TextDataConfig, TokenDataConfig, TokenSourceConfig
from jaxzoo.config_io import from_json, to_json
from jaxzoo.data.corpus.request import BuildConfig
from jaxzoo.generation import Sampling
from jaxzoo.layers.head_filters import HeadFiltersConfig
from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.layers.rotary_scaling import RotaryScaling
from jaxzoo.mixers import AttentionConfig, MixerConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sharding import MeshConfig
from jaxzoo.tasks.compositional_mqar import CompositionalMQARConfig
from jaxzoo.tasks.demos import DEMOS
from jaxzoo.tasks.forgetting_mqar import ForgettingMQARConfig
from jaxzoo.tasks.majority import MajorityConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from jaxzoo.tasks.parity import ParityConfig
from jaxzoo.tasks.presets import based_figure2
from jaxzoo.tasks.recall_data import Examples
from jaxzoo.tasks.record_documents import RecordsConfig
from jaxzoo.tasks.selective_copy import SelectiveCopyConfig

EXPERIMENT = ExperimentConfig(model=LanguageModelConfig(pattern=(AttentionConfig(),)), data=based_figure2())

ONES_OWN = [
    jaxzoo.cli.generate.Command(run=Path()),
    jaxzoo.cli.tasks.Command(),
    jaxzoo.cli.data_bigrams.Command(data=Path(), out=Path()),
    jaxzoo.cli.data_build.Command(source="pile", paths="x", out=Path()),
    jaxzoo.cli.data_demo_pile.Command(out=Path()),
    jaxzoo.cli.data_recall_statistics.Command(data=Path(), out=Path()),
    jaxzoo.cli.data_tokenize.Command(data=Path(), tokenizer="bytes", out=Path()),
    jaxzoo.cli.data_train_tokenizer.Command(data=Path(), out=Path()),
    jaxzoo.cli.tasks_records.Command(out=Path()),
    BuildConfig(source="pile", paths="x"),
    RecordsConfig(),
    *[demo() for demo in DEMOS.values()],
    benchmarks.generation.__main__.Command(),
    benchmarks.mixers_cpu.Command(),
    benchmarks.sweep_cpu.Command(),
    benchmarks.token_input.Command(),
    Sampling(),
    TextDataConfig(),
    TokenDataConfig(path="x"),
    TokenSourceConfig(path="x"),
    MQARConfig(),
    Examples(task=MQARConfig(), n_examples=1),
    EXPERIMENT,
    EXPERIMENT.model,
    EXPERIMENT.data,
    EXPERIMENT.optimizer,
    EXPERIMENT.train,
    MeshConfig(),
    HeadFiltersConfig(),
    HyenaFilterConfig(),
    RotaryScaling(),
    CompositionalMQARConfig(),
    ForgettingMQARConfig(),
    MajorityConfig(),
    NGramRecallConfig(),
    ParityConfig(),
    SelectiveCopyConfig(),
]


def subclasses(cls):
    return {cls, *(each for sub in cls.__subclasses__() for each in subclasses(sub))}


def ours():
    """A config of every concrete class in the packages, by its name."""
    classes = {c for c in subclasses(Checked) if c.__module__.startswith(("jaxzoo.", "benchmarks."))}
    mixers = [c.tiny() for c in classes if issubclass(c, MixerConfig) and not c.__abstractmethods__]
    made = {type(config): config for config in [*ONES_OWN, *mixers]}
    abstract = {c for c in classes if getattr(c, "__abstractmethods__", None)}
    assert classes - abstract - {Checked} == made.keys(), "a config without an example here"
    return sorted(made.values(), key=lambda config: (type(config).__module__, type(config).__name__))


def numeric(hint, kind):
    """Whether a declared type is `kind`, or None or a tuple of it beside others."""
    if hint is kind:
        return True
    return any(numeric(part, kind) for part in typing.get_args(hint) if typing.get_origin(hint) is not Literal)


CONFIGS = pytest.mark.parametrize("config", ours(), ids=lambda each: f"{type(each).__module__}.{type(each).__name__}")


@CONFIGS
def test_every_number_must_be_one_that_a_machine_knows(config):
    """Kills: a NaN, an infinity or an integer of 70 bits in a field that has no rule of its own."""
    for name, hint in typing.get_type_hints(type(config)).items():
        plain = not any(typing.get_origin(h) is tuple for h in (hint, *typing.get_args(hint)))
        wrong = [float("nan"), float("inf"), -float("inf"), 1e300] if numeric(hint, float) else []
        wrong += [2**70, -(2**70)] if numeric(hint, int) else []
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^{type(config).__name__}\.{name}[.0]*=\S+ must [^\n]*$"):
                dataclasses.replace(config, **{name: value if plain else (value,)})


@CONFIGS
def test_every_field_must_be_of_its_declared_type(config):
    """Kills: a comparison of a string with a number, an object that no file can hold."""
    for name, hint in typing.get_type_hints(type(config)).items():
        wrong = [object(), {"a": 1}, b"x", *([] if numeric(hint, str) else ["64"])]
        wrong += [] if type(None) in typing.get_args(hint) else [None]
        wrong += [] if numeric(hint, bool) else [True] if numeric(hint, int) or numeric(hint, float) else []
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^{type(config).__name__}\.{name}=.* must be [^\n]*$"):
                dataclasses.replace(config, **{name: value})


@pytest.mark.parametrize("field", ["learning_rate", "eps", "weight_decay", "b1", "clip_norm"])
def test_no_rate_is_negative(field):
    """Kills: a range that stands in the docstring alone."""
    with pytest.raises(ValueError, match=rf"^OptimizerConfig\.{field}=-0\.5 must (be|not be) "):
        OptimizerConfig(**{field: -0.5})


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


@pytest.mark.parametrize("kind", [Own, Heir])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": "64"}, "width='64' must be an integer or None"),
        ({"width": 0}, "width=0 must be positive"),
        ({"width": 64.0}, "width=64.0 must be an integer or None"),
        ({"width": 2**31}, "width=2147483648 must be below 2^31"),
        ({"rate": "1"}, "rate='1' must be a number"),
        ({"rate": True}, "rate=True must be a number"),
        ({"rate": 10**400}, f"rate=1{'0' * 76}... must be finite"),
        ({"rate": 2}, "rate=2.0 must be at most 1; lower it"),
        ({"seeds": 3}, "seeds=3 must be a tuple"),
        ({"seeds": [1, -1]}, "seeds.1=-1 must be in [0, 2^32)"),
        ({"seeds": (2**32,)}, "seeds.0=4294967296 must be in [0, 2^32)"),
        ({"pair": (1,)}, "pair=(1,) must have 2 items"),
        ({"pair": (1, "c")}, "pair.1='c' must be one of 'a', 'b'"),
    ],
)
def test_a_class_of_ones_own_is_checked_for_nothing(kind, fields, message):
    """Kills: a mixer of a user's own whose `__post_init__` forgets its base, and so all checks; a message without the
    field, or with the type of a union where the number was out of range."""
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


def test_own_rules_run_once_and_after_the_declarations():
    """Kills: a rule that meets a string; a rule that runs twice in a class with a base."""
    calls = []

    @dataclasses.dataclass(frozen=True)
    class Base(Checked):
        size: int = 1

        def __post_init__(self) -> None:
            super().__post_init__()
            calls.append(self.size + 1)

    @dataclasses.dataclass(frozen=True)
    class Derived(Base):
        def __post_init__(self) -> None:
            super().__post_init__()
            calls.append(-self.size)

    Derived(3)
    assert calls == [4, -3]
    with pytest.raises(ValueError, match=r"^Derived\.size='3' must be an integer$"):
        Derived("3")  # type: ignore[arg-type]
    assert calls == [4, -3]
