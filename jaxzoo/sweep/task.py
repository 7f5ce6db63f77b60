"""Runs of a sweep: which points share a run, and which runs share a compiled program."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import Json, to_json
from jaxzoo.sweep.experiment import Measurement, Point, Scale
from jaxzoo.train.flops import train_flops


@dataclasses.dataclass(frozen=True)
class Task:
    """A run of a sweep."""

    id: str
    """First 16 hexadecimal digits of the SHA-256 of everything that determines the result."""
    config: ExperimentConfig | Measurement
    """Training run or measurement."""
    also: Mapping[str, ExperimentConfig]
    """Configs of further validations of the trained model, by name."""

    @classmethod
    def of(cls, scale: Scale, point: Point) -> "Task":
        """The run of a point."""
        config, also = scale.config(point), scale.also(point)
        if not isinstance(config, ExperimentConfig | Measurement):
            raise ValueError(f"config gives {config!r}; it must be an ExperimentConfig or a Measurement")
        said = _canonical([_as_json(config), {name: _identity(other) for name, other in also.items()}])
        return cls(hashlib.sha256(said.encode()).hexdigest()[:16], config, also)

    @property
    def trained(self) -> ExperimentConfig:
        """The config of a run that trains."""
        assert isinstance(self.config, ExperimentConfig)
        return self.config

    @functools.cached_property
    def step_flops(self) -> float:
        """FLOPs per step."""
        return train_flops(self.trained, 1)

    @functools.cached_property
    def program(self) -> str:
        """Key of the compiled program: equal for runs that differ in learning rate and seed only."""
        if isinstance(self.config, Measurement):
            return self.id
        return _canonical([_without_rates(config) for config in (self.config, *self.also.values())])


def _as_json(config: ExperimentConfig | Measurement) -> Json:
    if isinstance(config, ExperimentConfig):
        return _identity(config)
    function = config.function
    module = re.sub("_[0-9a-f]{16}$", "", function.__module__)  # suffix of an imported file's module
    return {"function": f"{module}.{function.__qualname__}", "arguments": dict(config.arguments)}


def _identity(value: Any) -> Json:
    """A config without the fields that have their defaults, so that a new field keeps the ids of results."""
    if isinstance(value, tuple | list):
        return [_identity(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    said: dict[str, Json] = {"type": type(value).__name__}
    for field in dataclasses.fields(value):
        given, default = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if given != default:
            said[field.name] = _identity(given)
    return said


def _without_rates(config: ExperimentConfig) -> Json:
    stored = to_json(config)
    del stored["optimizer"]["learning_rate"], stored["train"]["seed"]
    return stored


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
