"""One page over sweeps that needs no other file: figures, claims, tables, and the learning curves of each mark."""

import json
import math
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from jaxzoo.sweep.experiment import Point, coordinates
from jaxzoo.sweep.figure import Mark
from jaxzoo.sweep.inline_svg import Label, inline
from jaxzoo.sweep.outcome import Best, Outcome, failed, metric, number
from jaxzoo.sweep.results import OVER, Row, thinned
from jaxzoo.sweep.table import SYMBOLS, cells, headings

TRAIN_POINTS, VALID_POINTS = 18, 12
"""Most points of a curve; two numbers each."""


def page(outcomes: Sequence[Outcome]) -> str:
    """Text of the page."""
    data: dict[str, dict[str, object]] = {}
    parts = [_part(outcome, i, data) for i, outcome in enumerate(outcomes)]
    verdicts = [found.verdict for outcome in outcomes for found in outcome.verdicts]
    runs = {row["id"]: row["cpu_seconds"] or 0 for outcome in outcomes for row in outcome.rows}
    summary = {
        "sweeps": f"{len(outcomes):,}",
        "runs": f"{len(runs):,}",
        "CPU-hours": f"{sum(runs.values()) / 3600:.1f}",
        **{f"{symbol} {verdict}": verdicts.count(verdict) for verdict, symbol in SYMBOLS.items()},
    }
    template = Environment(autoescape=True, keep_trailing_newline=True).from_string(_resource("report.html.jinja"))
    return template.render(parts=parts, summary=summary, symbols=SYMBOLS, data=_in_script(data), resource=_resource)


def _resource(name: str) -> Markup:
    return Markup(resources.files("jaxzoo.sweep").joinpath(name).read_text(encoding="utf-8"))


def _in_script(data: object) -> Markup:
    """JSON that no HTML parser takes for markup."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _part(outcome: Outcome, number: int, data: dict[str, dict[str, object]]) -> dict[str, Any]:
    """Variables of a section of the template; adds the data of its script to `data`."""
    known = PageData(outcome)
    svg = outcome.svg and Markup(inline(outcome.svg, prefix=f"s{number}-", title=outcome.about.title, label=known.mark))
    lines = [(known.line(best), cells(outcome, best)) for best in outcome.best()] if outcome.rows else []
    data[outcome.name] = {"runs": known.runs, "items": known.items}
    failures = list(map(failed, outcome.failures))
    return {"outcome": outcome, "svg": svg, "headings": headings(outcome), "lines": lines, "failures": failures}


class PageData:
    """The data of one sweep, gathered while its figure and table are written.

    Attributes:
      runs: of the sweep, each once.
      items: marks of the figure and lines of the table.
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
