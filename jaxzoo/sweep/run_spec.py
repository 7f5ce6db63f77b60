"""Runs of a sweep: which points share a run, which runs share a compiled program, and how long a run takes."""

import dataclasses
import functools
import itertools
import json
import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from jaxzoo.config.config_io import Json, to_json
from jaxzoo.sweep.experiment import Measurement, Point, Scale
from jaxzoo.train.config import RunConfig
from jaxzoo.train.speed import train_flops
from jaxzoo.utils.checksums import text_sha256

POWER = 0.6
"""Time per step is estimated as FLOPs to this power: small steps are less efficient."""


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """A run of a sweep."""

    id: str
    """First 16 hexadecimal digits of the SHA-256 of everything that determines the result."""
    config: RunConfig | Measurement
    also: Mapping[str, RunConfig]
    """Configs of further validations of the trained model, by name."""

    @classmethod
    def of(cls, scale: Scale, point: Point) -> "RunSpec":
        config = scale.config(point)
        also = scale.also(point)
        if isinstance(config, RunConfig):
            run = _identity(config)
        elif isinstance(config, Measurement):
            module = re.sub("_[0-9a-f]{16}$", "", config.function.__module__)  # suffix of an imported file's module
            function = f"{module}.{config.function.__qualname__}"
            run = {"function": function, "arguments": dict(config.arguments)}
        else:
            raise ValueError(f"config gives {config!r}; it must be a RunConfig or a Measurement")
        said = _canonical([run, {name: _identity(other) for name, other in also.items()}])
        return cls(text_sha256(said)[:16], config, also)

    @property
    def trained(self) -> RunConfig:
        assert isinstance(self.config, RunConfig)
        return self.config

    @functools.cached_property
    def step_flops(self) -> float:
        return train_flops(self.trained, 1)

    @functools.cached_property
    def mixers(self) -> str:
        """Classes of the mixers of all layers."""
        return " ".join(type(mixer).__name__ for mixer in self.trained.model.layers)

    @functools.cached_property
    def program(self) -> str:
        """Key of the compiled program: equal for runs that differ in learning rate and seed only."""
        if isinstance(self.config, Measurement):
            return self.id
        configs = [to_json(config) for config in (self.config, *self.also.values())]
        for stored in configs:
            del stored["optimizer"]["learning_rate"], stored["train"]["seed"]
        return _canonical(configs)


def _identity(value: Any) -> Json:
    """A config without fields that have their default, so that a new field does not change the ids of results.

    Ids of kept results contain the former name of `RunConfig`.
    """
    if isinstance(value, tuple | list):
        return [_identity(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    said: dict[str, Json] = {"type": "ExperimentConfig" if isinstance(value, RunConfig) else type(value).__name__}
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if given != default:
            said[field.name] = _identity(given)
    return said


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Rates:
    """Estimates the time of runs from other runs: seconds per step, proportional to a power of the FLOPs, and the share
    of their steps before an early stop. `step_seconds` and the results `done` have ids as keys."""

    def __init__(
        self, specs: Iterable[RunSpec], step_seconds: Mapping[str, float], done: Mapping[str, Mapping[str, Any]]
    ):
        self._rates: dict[str, list[float]] = {}
        self._shares: dict[str, list[float]] = {}
        for spec in specs:
            if not isinstance(spec.config, RunConfig):
                continue
            mixers = spec.mixers
            if spec.id in step_seconds:
                self._rates.setdefault(mixers, []).append(step_seconds[spec.id] / spec.step_flops**POWER)
            if made := done.get(spec.id, {}).get("steps"):
                for like in (spec.program, mixers):
                    self._shares.setdefault(like, []).append(made / spec.config.train.steps)

    def share(self, spec: RunSpec) -> float | None:
        """Expected share of steps before an early stop, from runs of the same program or mixers; None: unknown."""
        found = self._shares.get(spec.program) or self._shares.get(spec.mixers)
        return statistics.mean(found) if found else None

    def step_seconds(self, spec: RunSpec) -> float | None:
        """Estimate from runs of the same mixers, otherwise from all; None: there is none."""
        rates = self._rates.get(spec.mixers) or [*itertools.chain(*self._rates.values())]
        return statistics.median(rates) * spec.step_flops**POWER if rates else None

    def seconds(self, spec: RunSpec) -> float | None:
        """Estimate for a run; None: no step was measured yet, or it is a `Measurement`."""
        if not isinstance(spec.config, RunConfig) or (step := self.step_seconds(spec)) is None:
            return None
        share = self.share(spec)
        return step * spec.config.train.steps * (1 if share is None else share)
