"""One page over sweeps that needs no other file: figures, claims, tables, and the learning curves of each mark."""

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from jaxzoo.sweep.inline_svg import inline
from jaxzoo.sweep.outcome import Outcome, failed
from jaxzoo.sweep.page_data import PageData
from jaxzoo.sweep.table import SYMBOLS, cells, headings


class Section(NamedTuple):
    """A sweep on the page."""

    outcome: Outcome
    svg: str | None
    """Its figure; None: there is none."""
    reason: str
    """Reason why there is none."""


def page(sections: Sequence[Section]) -> str:
    """Text of the page."""
    data: dict[str, dict[str, object]] = {}
    parts = [_part(section, i, data) for i, section in enumerate(sections)]
    verdicts = [verdict.verdict for part in parts for verdict in part["verdicts"]]
    runs = {row["id"]: row["cpu_seconds"] or 0 for section in sections for row in section.outcome.rows}
    summary = {
        "sweeps": f"{len(sections):,}",
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


def _part(section: Section, number: int, data: dict[str, dict[str, object]]) -> dict[str, Any]:
    """Variables of a section of the template; adds the data of its script to `data`."""
    outcome, svg = section.outcome, None
    known = PageData(outcome)
    if section.svg is not None:
        title = outcome.experiment.title
        svg = Markup(inline(section.svg, prefix=f"s{number}-", title=title, label=known.mark))
    lines = [(known.line(best), cells(outcome, best)) for best in outcome.best()] if outcome.rows else []
    data[outcome.name] = {"runs": known.runs, "items": known.items}
    return {
        "outcome": outcome,
        "svg": svg,
        "reason": section.reason,
        "verdicts": outcome.verdicts(),
        "headings": headings(outcome),
        "lines": lines,
        "failures": list(map(failed, outcome.failures)),
    }
