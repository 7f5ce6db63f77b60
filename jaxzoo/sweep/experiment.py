"""Contents of a file of `experiments/`: the points of a figure at each scale, its claims and its drawing."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxzoo.sweep.claims import Claim, complaints, made_up_row
from jaxzoo.sweep.results import Results, Row
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.figure import Figure

Value = str | int | float | bool | None
Point = Mapping[str, Value]
"""One run by its coordinates: `{"model": "attention", "d_model": 64, "learning_rate": 1e-3}`."""


def grid(**axes: Sequence[Value]) -> list[Point]:
    """All points of a grid; the last axis moves fastest. Grids and single points are joined with `+`."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def coordinates(point: Point) -> str:
    """A point in words, `model hyena, d_model 64`; axes that it has no value on are left out."""
    known = {axis: f"{value:.4g}" if isinstance(value, float) else value for axis, value in point.items()}
    return ", ".join(f"{axis} {value}" for axis, value in known.items() if value is not None)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A computation at a point in place of a training run."""

    function: Callable[..., Mapping[str, float]]
    """A function of a module, which returns metrics by name. The result depends on its arguments only."""
    arguments: Mapping[str, Value]
    """Its keyword arguments."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """One size at which a figure is made."""

    about: str
    """The sizes, and how they differ from the paper's; one or two sentences, which stand below the figure."""
    points: Sequence[Point]
    """All have the same axes."""
    config: Callable[[Point], RunConfig | Measurement]
    """The run of a point. Points with equal runs share one."""
    also: Callable[[Point], Mapping[str, RunConfig]] = lambda point: {}
    """Further validations of the trained model, by name: configs whose models have the same variables. The metrics of
    `name` are called `name/valid/...`."""
    all_seeds: int | None = None
    """Number of learning rates per place, the best with the first seed, that run with all seeds; None: all of them."""
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Remarks on verdicts at this scale, by the name of the claim, such as why we think that it does not hold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure of a paper."""

    title: str
    """Such as `Zoology, Figure 2 (top)`."""
    about: str
    """Content of the figure, in a sentence or two."""
    scales: Mapping[str, Callable[[], Scale]]
    """Scales by name: `smoke` (a minute), `laptop` (one or two hours on two cores), `overnight` (about six hours of one
    core), `paper` (the paper's), `release` (the authors' code, where it differs)."""
    claims: Sequence[Claim]
    """Claims of the paper about the figure."""
    made_up: Callable[[Point], float | Mapping[str, Any]]
    """Made-up result of a run at a point if every claim held: its accuracy, or values by name of a metric or key of a
    row. The claims are checked on such rows before anything is run."""
    draw: Callable[[Results], Figure]
    """The figure; `jaxzoo.sweep.curves` has the means."""
    table: Callable[[Results], Sequence[Sequence[str]]] = lambda results: ()
    """A further table of the report, its headings first; it may raise `Missing`, and is left out then."""
    missing: Sequence[str] = ()
    """Parts of the paper's figure that this one lacks, and why."""

    def made_up_rows(self, scale: Scale) -> list[Row]:
        """Rows of a scale in which every claim that the scale can test holds."""
        return [made_up_row(point, self.made_up(point), i) for i, point in enumerate(scale.points)]

    def complaints(self, scale: Scale) -> list[str]:
        """Faults of the claims on made-up rows of a scale, one line each."""
        others = [lambda name=name: self.made_up_rows(self.scales[name]()) for name in self.scales]
        return complaints(self.claims, self.made_up_rows(scale), others)
