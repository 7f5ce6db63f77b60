"""One page over sweeps that needs no other file: figures, claims, tables, and the learning curves of each mark."""

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from jaxzoo.sweep.inline_svg import inline
from jaxzoo.sweep.outcome import Outcome, failed
from jaxzoo.sweep.page_data import PageData
from jaxzoo.sweep.table import SYMBOLS, cells, headings


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
