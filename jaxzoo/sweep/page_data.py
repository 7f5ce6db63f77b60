"""Data of a page's script: the runs with their learning curves, and which of them a mark or a line shows."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from jaxzoo.sweep.experiment import Point
from jaxzoo.sweep.figure import Mark
from jaxzoo.sweep.inline_svg import Label
from jaxzoo.sweep.outcome import Best, Outcome, coordinates, metric, number
from jaxzoo.sweep.results import OVER, Row, thinned

TRAIN_POINTS, VALID_POINTS = 18, 12
"""Most points of a curve; two numbers each."""


class PageData:
    """The data of one sweep, gathered while its figure and table are written.

    Attributes:
      runs: of the sweep, each once.
      items: marks of the figure and lines of the table.

    Args:
      outcome: of the sweep.
    """

    def __init__(self, outcome: Outcome):
        self._rows: dict[str, list[Row]] = {}
        for row in outcome.rows:
            self._rows.setdefault(row["id"], []).append(row)
        self._numbers = {run: i for i, run in enumerate(self._rows)}
        self._metric = outcome.metrics[0]
        self.runs: list[dict[str, Any]] = [_run(rows[0]) for rows in self._rows.values()]
        self.items: list[dict[str, Any]] = []

    def mark(self, mark: Mark) -> Label:
        """Adds a mark, named by what the points of all its runs share."""
        shared = _shared(row for run in mark.runs for row in self._rows[run])
        where = {axis: value for axis, value in shared.items() if axis not in OVER}
        return self._add(where, [self._rows[run][0] for run in mark.runs], mark.metric)

    def line(self, best: Best) -> int:
        """Adds a line of the table; returns its number."""
        return self._add(best.where, best.runs, self._metric).item

    def _add(self, where: Point, rows: Sequence[Row], name: str) -> Label:
        points = [_shared(self._rows[row["id"]]) for row in rows]  # a run may stand for several
        values = [metric(name, row["metrics"][name]) if name in row["metrics"] else row["status"] for row in rows]
        item = {
            "title": coordinates(where),
            "metric": name.removeprefix("valid/"),
            "runs": [self._numbers[row["id"]] for row in rows],
            "names": [coordinates({axis: point[axis] for axis in point if axis not in where}) for point in points],
            "values": values,
        }
        self.items.append(item)
        return Label(len(self.items) - 1, f"{item['title']}: {item['metric']} {values[0]}")


def _run(row: Row) -> dict[str, Any]:
    facts = [f"{row['seconds']:.3g} s"]
    for key, words in (("steps", "steps"), ("n_parameters", "parameters"), ("state_bytes", "bytes of state")):
        if row.get(key):
            facts.append(f"{number(row[key])} {words}")
    curve = row.get("curve", {})
    return {
        "facts": facts,
        "metrics": [[name.removeprefix("valid/"), metric(name, value)] for name, value in row["metrics"].items()],
        "diverged": row["status"] == "diverged",
        "train": short_curve(curve.get("train", ()), TRAIN_POINTS),
        "valid": short_curve(curve.get("valid", ()), VALID_POINTS),
    }


def short_curve(pairs: Iterable[Sequence[float]], most: int) -> list[list[float]]:
    """The finite points of a curve, at most `most`, with four digits."""
    return thinned([[step, float(f"{value:.4g}")] for step, value in pairs if math.isfinite(value)], most)


def _shared(rows: Iterable[Row]) -> Point:
    """The coordinates in which the points of rows agree."""
    first, *others = [row["point"] for row in rows]
    return {axis: value for axis, value in first.items() if all(point.get(axis) == value for point in others)}
