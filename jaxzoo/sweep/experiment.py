"""Experiments, as in the files of `experiments/`: points of a figure at each scale, claims and drawing."""

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
    """All points of a grid; the last axis varies fastest. Grids are joined with `+`."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def coordinates(point: Point) -> str:
    """Text of a point, `model hyena, d_model 64`, without axes whose value is None."""
    known = {axis: f"{value:.4g}" if isinstance(value, float) else value for axis, value in point.items()}
    return ", ".join(f"{axis} {value}" for axis, value in known.items() if value is not None)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A computation at a point in place of a training run."""

    function: Callable[..., Mapping[str, float]]
    """A function of a module, which returns metrics by name. The result depends on its arguments only."""
    arguments: Mapping[str, Value]
    """Keyword arguments of the function."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """One size at which a figure is made."""

    about: str
    """Caption of the figure: the sizes, and how they differ from the paper's, in one or two sentences."""
    points: Sequence[Point]
    """Points, which have the same axes."""
    config: Callable[[Point], RunConfig | Measurement]
    """Returns the run of a point. Points with equal configs share a run."""
    also: Callable[[Point], Mapping[str, RunConfig]] = lambda point: {}
    """Returns configs, by name, for further validations of the trained model; their models have the same variables.
    Metrics are called `NAME/valid/...`."""
    all_seeds: int | None = None
    """Number of learning rates, the best ones of the first seed, that run with all seeds; None: all."""
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Remarks on verdicts at this scale by name of the claim, such as the probable reason why it does not hold."""
    few_rates: str = ""
    """Reason why fewer learning rates than verdicts need (`Sweep.untuned`) are enough."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure of a paper."""

    title: str
    """Title of the figure, such as `Zoology, Figure 2 (top)`."""
    about: str
    """Content of the figure, in a sentence or two."""
    scales: Mapping[str, Callable[[], Scale]]
    """Scales by name: `smoke` (a minute), `laptop` (one or two hours on two cores), `overnight` (about six hours of one
    core), `paper` (the paper's), `release` (the authors' code, where it differs)."""
    claims: Sequence[Claim]
    """Claims of the paper about the figure."""
    made_up: Callable[[Point], float | Mapping[str, Any]]
    """Returns a made-up result at a point, with which every claim holds: an accuracy, or values by name of a metric or
    key of a row. Claims are tested on such rows before the first run."""
    draw: Callable[[Results], Figure]
    """Draws the figure, for example with `jaxzoo.sweep.curves`."""
    table: Callable[[Results], Sequence[Sequence[str]]] = lambda results: ()
    """Returns a further table of the report, its headings first; left out if it raises `Missing`."""
    missing: Sequence[str] = ()
    """Parts of the paper's figure that are missing here, and why."""

    def made_up_rows(self, scale: Scale) -> list[Row]:
        """Made-up rows of a scale, on which every claim that the scale can test holds."""
        return [made_up_row(point, self.made_up(point), i) for i, point in enumerate(scale.points)]

    def complaints(self, scale: Scale) -> list[str]:
        """Faults of the claims on made-up rows of a scale, one line each."""
        others = [lambda name=name: self.made_up_rows(self.scales[name]()) for name in self.scales]
        return complaints(self.claims, self.made_up_rows(scale), others)
