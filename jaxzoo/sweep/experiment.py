"""Contents of a file of `experiments/`: the points of a figure at each scale, its claims and its drawing."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxzoo.config import ExperimentConfig
from jaxzoo.sweep.results import Claim, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | bool | None
Point = Mapping[str, Value]
"""One run by its coordinates: `{"model": "attention", "d_model": 64, "learning_rate": 1e-3}`."""


def grid(**axes: Sequence[Value]) -> list[Point]:
    """All points of a grid; the last axis moves fastest. Grids and single points are joined with `+`."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def in_words(point: Point) -> str:
    """`model attention, d_model 64`."""
    values = {axis: f"{value:g}" if isinstance(value, float) else str(value) for axis, value in point.items()}
    return ", ".join(f"{axis} {value}" for axis, value in values.items())


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A computation at a point in place of a training run."""

    function: Callable[..., Mapping[str, float]]
    """A function of a module, which returns metrics by name. The result depends on its arguments only."""
    arguments: Mapping[str, Value]
    """Its keyword arguments."""


def _nothing_else(point: Point) -> Mapping[str, ExperimentConfig]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """One size at which a figure is made."""

    about: str
    """The sizes, and how they differ from the paper's; one or two sentences, which stand below the figure."""
    points: Sequence[Point]
    """All have the same axes."""
    config: Callable[[Point], ExperimentConfig | Measurement]
    """The run of a point. Points with equal runs share one."""
    also: Callable[[Point], Mapping[str, ExperimentConfig]] = _nothing_else
    """Further validations of the trained model, by name: configs whose models have the same variables. The metrics of
    `name` are called `name/valid/...`."""
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
    """Scales by name: `smoke` (a minute), `laptop` (about an hour on two cores), `paper` (the paper's), `release` (the
    authors' code, where it differs)."""
    claims: Sequence[Claim]
    """Claims of the paper about the figure."""
    draw: Callable[[Results], "Figure"]
    """The figure; `jaxzoo.sweep.figure` has the means."""
    missing: Sequence[str] = ()
    """Parts of the paper's figure that this one lacks, and why."""
