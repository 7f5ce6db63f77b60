"""What a file of `experiments/` defines: the points of a figure at each scale, its claims and its drawing."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import Json, to_json
from jaxzoo.sweep.results import Claim, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | bool | None
Point = Mapping[str, Value]
"""One run by its coordinates: `{"model": "attention", "d_model": 64, "learning_rate": 1e-3}`."""


def grid(**axes: Sequence[Value]) -> list[Point]:
    """All points of a grid; the last axis moves fastest. Grids and single points are joined with `+`."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _nothing_else(point: Point) -> Mapping[str, ExperimentConfig]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """One size at which a figure is made."""

    about: str
    """The sizes, and how they differ from the paper's; one or two sentences, which stand below the figure."""
    points: Sequence[Point]
    """All have the same axes."""
    config: Callable[[Point], ExperimentConfig]
    """The run of a point. Points with equal runs share one."""
    also: Callable[[Point], Mapping[str, ExperimentConfig]] = _nothing_else
    """What the trained model is asked besides, by name: configs whose models have the same variables. The metrics of
    `name` come as `name/valid/...`."""
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By the name of a claim: what to know of its verdict at this scale, such as why we think that it does not hold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure of a paper."""

    title: str
    """Such as `Zoology, Figure 2 (top)`."""
    about: str
    """What is shown, in a sentence or two."""
    scales: Mapping[str, Callable[[], Scale]]
    """By name: `smoke` (a minute), `laptop` (an hour on two cores), `paper` (the paper's), `release` (the authors'
    code, where it differs)."""
    claims: Sequence[Claim]
    """What the paper says of the figure."""
    draw: Callable[[Results], "Figure"]
    """The figure; `jaxzoo.sweep.figure` has the means."""
    missing: Sequence[str] = ()
    """What the paper's figure shows and this one does not, and why."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run that a sweep has to make.

    Attributes:
      id: 16 hexadecimal digits of the SHA-256 of all that determines its result.
      config: what it trains.
      also: what the trained model is asked besides.
    """

    config: ExperimentConfig
    also: Mapping[str, ExperimentConfig]
    id: str

    @classmethod
    def of(cls, scale: Scale, point: Point) -> "Task":
        """The run of a point."""
        config, also = scale.config(point), scale.also(point)
        asked = [to_json(config), {name: to_json(other) for name, other in also.items()}]
        return cls(config, also, hashlib.sha256(_canonical(asked).encode()).hexdigest()[:16])

    @property
    def program(self) -> str:
        """Equal for tasks that one compiled program can run: they differ in learning rate and seed alone."""
        config = to_json(self.config)
        for part, field in _VARIABLE:
            del config[part][field]
        asked = {name: to_json(other) for name, other in self.also.items()}
        for other in asked.values():
            for part, field in _VARIABLE:
                del other[part][field]
        return _canonical([config, asked])


_VARIABLE = (("optimizer", "learning_rate"), ("train", "seed"))


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
