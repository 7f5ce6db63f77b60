"""One page over sweeps that needs no other file: figures, claims, tables, and the learning curves of each mark."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from jinja2 import Environment
from markupsafe import Markup

from jaxzoo.sweep.experiment import Point, coordinates
from jaxzoo.sweep.figure import Mark
from jaxzoo.sweep.outcome import Best, Outcome, failed, metric, number
from jaxzoo.sweep.results import OVER, Missing, Results, Row, thinned
from jaxzoo.sweep.table import SYMBOLS, cells, headings

TRAIN_POINTS, VALID_POINTS = 18, 12
"""Most points of a curve; two numbers each."""


def page(outcomes: Sequence[Outcome]) -> str:
    """Text of the page."""
    data: dict[str, dict[str, object]] = {}
    parts: list[dict[str, Any]] = []
    for i, outcome in enumerate(outcomes):
        known, title = PageData(outcome), outcome.about.title
        svg = outcome.svg and Markup(inline(outcome.svg, prefix=f"s{i}-", title=title, label=known.mark))
        lines = [(known.line(best), cells(outcome, best)) for best in outcome.best()] if outcome.rows else []
        failures = list(map(failed, outcome.failures))
        parts.append(
            {"outcome": outcome, "svg": svg, "headings": headings(outcome), "lines": lines, "failures": failures}
        )
        data[outcome.name] = {"runs": known.runs, "items": known.items}
    verdicts = [found.verdict for outcome in outcomes for found in outcome.verdicts]
    runs = {row["id"]: row["cpu_seconds"] or 0 for outcome in outcomes for row in outcome.rows}
    summary = {
        "sweeps": f"{len(outcomes):,}",
        "runs": f"{len(runs):,}",
        "CPU-hours": f"{sum(runs.values()) / 3600:.1f}",
        **{f"{symbol} {verdict}": verdicts.count(verdict) for verdict, symbol in SYMBOLS.items()},
    }
    template = Environment(autoescape=True, keep_trailing_newline=True).from_string(_resource("report.html.jinja"))
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    script = Markup(text.replace("<", "\\u003c"))  # no HTML parser takes it for markup
    return template.render(parts=parts, summary=summary, symbols=SYMBOLS, data=script, resource=_resource)


def _resource(name: str) -> Markup:
    return Markup(resources.files("jaxzoo.sweep").joinpath(name).read_text(encoding="utf-8"))


class Label(NamedTuple):
    """Data of a mark on a page."""

    item: int
    """Its number in the page's data."""
    text: str
    """Text for screen readers."""


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
            "value": _score(rows, name) or values[0],
        }
        self.items.append(item)
        return Label(len(self.items) - 1, f"{item['title']}: {item['metric']} {item['value']}")


def _score(rows: Sequence[Row], name: str) -> str | None:
    """The score of the runs of a mark or line, its height in a figure; None: no run has the metric."""
    try:
        score = Results(rows).seeds(name)
    except Missing:
        return None
    return metric(name, score.mean) + (f", mean of {len(score.rows)} seeds" if len(score.rows) > 1 else "")


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


def inline(svg: str, *, prefix: str, title: str, label: Callable[[Mark], Label]) -> str:
    """The `<svg>` element for a page.

    Every mark becomes `<g class="mark" data-item=... aria-label=...>`; one that its panel clips away does not. A colour
    `#0072b2` becomes `var(--h0072b2, #0072b2)`, so that the page may change it. All ids get the prefix:
    those of two figures differ. The title is read aloud.
    """
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        _shorten(element)
    for parent in root.iter():
        for child in [child for child in parent if child.tag in ("metadata", "style")]:
            parent.remove(child)
    clips = {found.get("id"): found.find("rect") for found in root.iter("clipPath")}
    for group in root.iter("g"):
        if mark := Mark.parse(group.get("id", "")):
            del group.attrib["id"]
            found = label(mark)
            if _is_visible(group, clips):
                attributes = {"class": "mark", "data-item": str(found.item), "role": "button", "aria-label": found.text}
                group.attrib |= attributes
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.attrib |= {"role": "group", "aria-label": title, "style": f"max-width:{1.6 * width:.0f}px"}
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'(?: href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    return re.sub(r'( id="| href="#|url\(#)', rf"\g<1>{prefix}", text)


def _shorten(element: Element) -> None:
    """Removes namespaces, fonts, indentation and superfluous decimals; makes colours variables."""
    element.tag = element.tag.rpartition("}")[2]
    for name, value in list(element.attrib.items()):
        del element.attrib[name]
        if name in ("d", "x", "y"):
            value = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", " ".join(value.split()))
        if name == "style":
            value = re.sub(r"font-family:[^;]*;?\s*", "", value)
            value = re.sub(r"#([0-9a-f]{6})\b", r"var(--h\1, #\1)", value)
        element.set(name.rpartition("}")[2], value)
    if element.tag not in ("text", "tspan"):
        element.text = (element.text or "").strip()
        for child in element:
            child.tail = ""


def _is_visible(group: Element, clips: dict[str | None, Element | None]) -> bool:
    """Whether the dot of a mark is inside its panel."""
    dot, clipped = group.find(".//use"), group.find("g[@clip-path]")
    clip = clips.get(clipped.get("clip-path", "")[5:-1]) if clipped is not None else None
    if dot is None or clip is None:
        return dot is not None
    offsets = {axis: float(dot.get(axis, "0")) - float(clip.get(axis, "0")) for axis in ("x", "y")}
    sizes = {"x": float(clip.get("width", "0")), "y": float(clip.get("height", "0"))}
    return all(-0.1 <= offsets[axis] <= sizes[axis] + 0.1 for axis in offsets)
