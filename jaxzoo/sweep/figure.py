"""Means for the figures of experiments: curves that know which runs stand behind each of their marks."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxzoo.sweep.results import SCORE, Missing, Results, Row
from pallas_kernels.figure import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = "runs:"
"""Beginning of the SVG id of a curve: behind it, the ids of the runs of each mark, marks parted by ";", runs by ","."""


def curve(
    panel: "Axes",
    results: Results,
    *,
    x: str | Callable[[Row], float | None],
    points: Sequence[dict[str, Any]],
    label: str,
    series: int,
    metric: str = SCORE,
) -> None:
    """Draws the best metric at each of some points; a point without finished run is left out.

    Args:
      panel: where to.
      results: of the sweep.
      x: the axis on the x-axis, or a function of the best row; a mark whose x is None is left out.
      points: coordinates of each mark; over all others the best counts.
      label: in the legend.
      series: number of the style.
      metric: on the y-axis.
    """
    marks: list[tuple[float, float, str]] = []
    for where in points:
        try:
            row = results.best(metric, **where)
        except Missing:
            continue
        place = x(row) if callable(x) else row["point"][x]
        if place is not None:
            runs = ",".join(r["id"] for r in results.select(**where))
            marks.append((place, row["metrics"][metric], runs))
    if not marks:
        return
    places, heights, runs = zip(*marks, strict=True)
    panel.plot(places, heights, **series_style(series), label=label, gid=MARKS + ";".join(runs))
