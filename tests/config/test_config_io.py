"""Configs as JSON. Kills: a class or tuple that is lost, a field that is dropped."""

import dataclasses
import importlib
import inspect
import json
import pkgutil
from typing import Literal

import pytest

import jaxzoo.mixers
import jaxzoo.tasks
import jaxzoo.train.config
from jaxzoo.config.config_io import first_difference, from_json, to_json
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.mixers import AttentionConfig, BaseConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.presets import based_figure2
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    rate: float
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherLeaf:
    rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree:
    leaf: Leaf | OtherLeaf
    pair: tuple[int, str] = (1, "x")


def experiment(data, **fields) -> RunConfig:
    pattern = (BaseConvConfig(filter="long"), TaylorLinearAttentionConfig(feature_dim=5), AttentionConfig())
    return RunConfig(model=LanguageModelConfig(pattern=pattern, d_model=48, **fields), data=data)


@pytest.mark.parametrize("data", [based_figure2(), TextDataConfig(path="x", length=31)])
def test_experiment_survives_json(data):
    """Kills: lost classes of mixers or data, tuples that come back as lists, fields left at defaults."""
    config = experiment(data)
    assert from_json(json.loads(json.dumps(to_json(config))), RunConfig) == config


def tasks_of_ours() -> list[type[TaskConfig]]:
    """The concrete task configs that the modules of `jaxzoo.tasks` define."""
    names = [module.name for module in pkgutil.iter_modules(jaxzoo.tasks.__path__) if module.name != "__main__"]
    modules = [importlib.import_module(f"jaxzoo.tasks.{name}") for name in names]
    found = [c for module in modules for c in vars(module).values() if inspect.isclass(c)]
    tasks = {c for c in found if issubclass(c, TaskConfig) and not inspect.isabstract(c)}
    return sorted(tasks, key=lambda c: c.__name__)


def test_every_task_of_ours_is_known_by_its_name():
    """Kills: a task that only the file that names it has imported, whose runs nobody else can read."""
    for task in tasks_of_ours():
        assert getattr(jaxzoo.train.config, task.__name__) is task
        examples = (Examples(task=task(), n_examples=9),)
        fields = {"vocab_size": task().vocab_size, **task().model_fields}
        config = experiment(RecallDataConfig(train=examples, valid=examples), **fields)
        written = json.loads(json.dumps(to_json(config)))
        assert written["data"]["train"][0]["task"]["type"] == task.__name__
        assert from_json(written, RunConfig) == config


def test_a_class_of_the_same_name_is_another_class():
    """Kills: a user's class that is loaded in the place of ours, or ours in the place of the user's."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class BaseConvConfig(jaxzoo.mixers.BaseConvConfig):
        n_taps: int = 5

    for mixer in (BaseConvConfig(), jaxzoo.mixers.BaseConvConfig(), AttentionConfig()):
        model = LanguageModelConfig(pattern=(mixer,))
        stored = json.loads(json.dumps(to_json(model)))
        assert type(from_json(stored, LanguageModelConfig).pattern[0]) is type(mixer)
    assert to_json(LanguageModelConfig(pattern=(AttentionConfig(),)))["pattern"][0]["type"] == "AttentionConfig"


def test_abstract_field_says_what_it_is():
    """Kills: a data config that is guessed where its name is left out; the name of a base taken for a class."""
    written = to_json(experiment(TextDataConfig()))
    assert written["data"].pop("type") == "TextDataConfig"
    with pytest.raises(ValueError, match=r"data: needs the key 'type', the name of a DataConfig$"):
        from_json(written, RunConfig)
    with pytest.raises(ValueError, match=r"data: unknown type 'DataConfig'; did you mean 'TextDataConfig'"):
        from_json({**written, "data": {"type": "DataConfig"}}, RunConfig)


def test_left_out_field_takes_its_default_and_whole_number_is_a_float():
    """Kills: refusing the config of an older version, or one that a person edited by hand."""
    loaded = from_json({"leaf": {"rate": 2}}, Tree)
    assert loaded == Tree(leaf=Leaf(rate=2.0))
    assert isinstance(loaded.leaf.rate, float)


def test_bad_json_is_refused_by_path():
    """Kills: unknown fields dropped in silence, wrong types let through until they fail far away."""
    for value, message in (
        ({"leaf": {"ratee": 1.0}}, r"^Tree.leaf: Leaf has no field 'ratee'; did you mean 'rate'\?$"),
        (
            {"leaf": {"type": f"{__name__}:OtherLef", "rate": 1.0}},
            r"unknown type '.*OtherLef'; did you mean '.*OtherLeaf'",
        ),
        ({"leaf": {}}, "^Tree.leaf.rate is missing$"),
        ({"leaf": {"rate": "high"}}, "^Tree.leaf.rate='high' must be a number$"),
        ({"leaf": {"rate": True}}, "^Tree.leaf.rate=True must be a number$"),
        ({"leaf": {"rate": 1.0, "kind": "c"}}, r"^Tree.leaf.kind='c' must be one of 'a', 'b'$"),
        ({"leaf": {"rate": 1.0, "sizes": [1, "2"]}}, "^Tree.leaf.sizes.1='2' must be an integer$"),
        ({"leaf": {"rate": 1.0}, "pair": [1, "x", 2]}, r"^Tree.pair=\[1, 'x', 2\] must have 2 items$"),
    ):
        with pytest.raises(ValueError, match=message):
            from_json(value, Tree)


def test_first_difference_names_the_deepest_field():
    """Kills: stopping at the first differing object; a path that hides all names that begin like it."""
    old = {"a": {"b": [1, {"c": 2}]}, "mesh": {"d": 1}, "mesh2": 1, "n": [1]}
    assert first_difference(old, old) is None
    assert first_difference(old, {**old, "a": {"b": [1, {"c": 3}]}}) == ("a.b.1.c", 2, 3)
    assert first_difference(old, {**old, "mesh": {"d": 2}}, ignore={"mesh"}) is None
    assert first_difference(old, {**old, "mesh2": 2}, ignore={"mesh"}) == ("mesh2", 1, 2)
    assert first_difference(old, {**old, "n": [1, 2]}) == ("n", [1], [1, 2])
    assert first_difference(old, {**old, "new": 5}) == ("new", None, 5)


def test_a_config_file_of_the_last_version_still_imports():
    """Kills: config files of users that fail, old names that nobody warns of, any name that is found."""
    import jaxzoo.config

    with pytest.warns(FutureWarning, match=r"^jaxzoo.config.TrainConfig is now jaxzoo.train.config.TrainConfig; "):
        assert jaxzoo.config.TrainConfig is jaxzoo.train.config.TrainConfig
    with pytest.warns(FutureWarning, match=r"train.config.ExperimentConfig is now RunConfig; "):
        assert jaxzoo.train.config.ExperimentConfig is jaxzoo.train.config.RunConfig
    for name in ("TrainConfg", "recipes", "_hidden"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(jaxzoo.config, name)
