"""Curves for the figures of experiments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from jaxzoo.sweep.results import SCORE, Missing, Results, Row, SeedScore
from jaxzoo.utils.figure import Axes, bound_style, series_style


def accuracy_label(results: Results) -> str:
    """Label of the y-axis: the statistic of `curve`, by whether points have several seeds."""
    seeds = {row["point"].get("seed") for row in results.rows}
    return "accuracy, mean of the seeds" if len(seeds) > 1 else "accuracy, best run"


def curve(
    panel: Axes,
    results: Results,
    *,
    x: str | Callable[[Row], float | None],
    points: Sequence[Mapping[str, Any]],
    label: str,
    series: int,
    metric: str = SCORE,
    frontier: bool = False,
) -> None:
    """Draws the score at each of some points, with the range of its seeds; unfinished points are left out.

    Args:
      x: axis of the points, or a function of the best row; a mark whose x is None is left out.
      points: coordinates of each mark; the best run over all other axes is drawn.
      series: index of the style.
      frontier: the points are of rising x; the line joins those that no point of a smaller x reaches.
    """
    drawn: list[tuple[float, SeedScore]] = []
    for where in points:
        try:
            score = results.seeds(metric, **where)
        except Missing:
            continue
        row = score.rows[0]
        place = x(row) if callable(x) else row["point"][x]
        if place is not None:
            drawn.append((place, score))
    if drawn:
        places = [place for place, _ in drawn]
        heights = [score.mean for _, score in drawn]
        spread = [(score.low, score.high) for _, score in drawn]
        marked_line(panel, places, heights, label=label, series=series, spread=spread, frontier=frontier)


def marked_line(
    panel: Axes,
    places: Sequence[float],
    heights: Sequence[float],
    *,
    label: str,
    series: int,
    spread: Sequence[tuple[float, float]] = (),
    frontier: bool = False,
) -> None:
    """Draws a line with marks; `spread` has the range of the seeds of each mark, `series` the index of the style.

    With `frontier`, the line joins only marks that are higher than all before them; the others are hollow.
    """
    style = series_style(series)
    for place, (low, high) in zip(places, spread, strict=bool(spread)):
        if high > low:
            panel.vlines([place], [low], [high], color=style["color"], linewidth=0.9, zorder=1)
    joined = [not frontier or height > max(heights[:i], default=-1) for i, height in enumerate(heights)]
    panel.plot(list(compress(places, joined)), list(compress(heights, joined)), **style, label=label)
    for place, height, is_joined in zip(places, heights, joined, strict=True):
        if not is_joined:
            panel.plot([place], [height], **{**style, "linestyle": "none"}, markerfacecolor="white")


def guessing(
    panel: Axes, rows: Iterable[Row], metric: str = SCORE, *, x: str | None = None, vertical: bool = False
) -> None:
    """Draws the guessing line that the runs of a panel share: over the axis `x` if given, `vertical` on the x-axis."""
    lines: dict[Any, set[float]] = {}
    for row in rows:
        if metric in row.get("guess", {}):
            lines.setdefault(row["point"][x] if x else None, set()).add(row["guess"][metric])
    if not lines or max(map(len, lines.values())) > 1:
        return
    heights = {place: line for place, (line,) in lines.items()}
    style = {**bound_style(1), "label": "guessing"}
    if x is not None:
        panel.plot(sorted(heights), [heights[place] for place in sorted(heights)], **style)
    elif vertical:
        panel.axvline(heights[None], **style)
    else:
        panel.axhline(heights[None], **style)
