"""The runs of a sweep: which points share one, and which runs share a program."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import Json, to_json
from jaxzoo.sweep.experiment import Measurement, Point, Scale
from jaxzoo.sweep.identity import identity
from jaxzoo.train.flops import train_flops


@dataclasses.dataclass(frozen=True)
class Task:
    """A run that a sweep has to make."""

    id: str
    """16 hexadecimal digits of the SHA-256 of all that determines the result."""
    config: ExperimentConfig | Measurement
    """What it trains, or computes."""
    also: Mapping[str, ExperimentConfig]
    """What the trained model is asked besides."""

    @classmethod
    def of(cls, scale: Scale, point: Point) -> "Task":
        """The run of a point."""
        config, also = scale.config(point), scale.also(point)
        said = _canonical([_as_json(config), {name: identity(other) for name, other in also.items()}])
        return cls(hashlib.sha256(said.encode()).hexdigest()[:16], config, also)

    @property
    def trained(self) -> ExperimentConfig:
        """The config of a run that trains."""
        assert isinstance(self.config, ExperimentConfig)
        return self.config

    @functools.cached_property
    def step_flops(self) -> float:
        """FLOPs of an update."""
        return train_flops(self.trained, 1)

    @functools.cached_property
    def program(self) -> str:
        """Equal for runs that one compiled program can make: they differ in learning rate and seed alone."""
        if isinstance(self.config, Measurement):
            return self.id
        return _canonical([_without_rates(config) for config in (self.config, *self.also.values())])


def _as_json(config: ExperimentConfig | Measurement) -> Json:
    if isinstance(config, ExperimentConfig):
        return identity(config)
    function = config.function
    module = re.sub("_[0-9a-f]{16}$", "", function.__module__)  # what an imported file has behind its name
    return {"function": f"{module}.{function.__qualname__}", "arguments": dict(config.arguments)}


def _without_rates(config: ExperimentConfig) -> Json:
    stored = to_json(config)
    del stored["optimizer"]["learning_rate"], stored["train"]["seed"]
    return stored


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
