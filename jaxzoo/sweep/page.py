"""One page over sweeps that needs nothing else: figures, claims, tables, and the learning curves behind each mark."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

from jaxzoo.sweep.inline_svg import inline
from jaxzoo.sweep.outcome import Outcome, failed
from jaxzoo.sweep.page_data import PageData
from jaxzoo.sweep.table import SYMBOLS, cells, headings

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The browser is told to load nothing."""


class Section(NamedTuple):
    """A sweep on the page."""

    outcome: Outcome
    svg: str | None
    """Its figure; None: there is none."""
    reason: str
    """Why there is none."""


def page(sections: Sequence[Section]) -> str:
    """The page as text."""
    data: dict[str, dict[str, object]] = {}
    body = "\n".join(_section(section, i, data) for i, section in enumerate(sections))
    outcomes = [section.outcome for section in sections]
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>jaxzoo: figures of the papers</title>
<style>
{_resource("report.css")}</style>
<nav aria-label="Figures">
<a class="home" href="#top">jaxzoo</a>
<ol>{"".join(map(_link, outcomes))}</ol>
</nav>
<main>
<header>
<h1>Figures of the papers, made again</h1>
{_summary(outcomes)}
<p class="hint">Point at a mark or at a line of a table for the learning curves behind it; a click keeps them.
By keyboard: Tab to a figure or table, arrows to move, Enter to keep, Escape to let go.
Verdicts are those of the sizes that stand below each figure.</p>
</header>
{body}
</main>
<script type="application/json">{_in_script(data)}</script>
<script>
{_resource("charts.js")}
{_resource("cards.js")}
{_resource("report.js")}</script>
</html>
"""


def _resource(name: str) -> str:
    return resources.files("jaxzoo.sweep").joinpath(name).read_text(encoding="utf-8")


def _in_script(data: object) -> str:
    """JSON that no HTML parser takes for markup."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _summary(outcomes: Sequence[Outcome]) -> str:
    verdicts = [verdict.verdict for outcome in outcomes for verdict in outcome.verdicts()]
    runs = {row["id"]: row["cpu_seconds"] or 0 for outcome in outcomes for row in outcome.rows}
    counts = {
        "sweeps": f"{len(outcomes):,}",
        "runs": f"{len(runs):,}",
        "CPU-hours": f"{sum(runs.values()) / 3600:.1f}",
        **{f"{symbol} {verdict}": f"{verdicts.count(verdict)}" for verdict, symbol in SYMBOLS.items()},
    }
    return f"<dl>{''.join(f'<div><dt>{words}</dt><dd>{count}</dd></div>' for words, count in counts.items())}</dl>"


def _link(outcome: Outcome) -> str:
    verdicts = [verdict.verdict for verdict in outcome.verdicts()]
    counts = {verdict: verdicts.count(verdict) for verdict in SYMBOLS if verdict in verdicts}
    tally = "".join(
        f'<span class="{_class(verdict)}" role="img" aria-label="{count} {verdict}" title="{count} {verdict}">'
        f"{SYMBOLS[verdict]} {count}</span>"
        for verdict, count in counts.items()
    )
    words = f"{escape(outcome.experiment.title)} <small>{escape(outcome.scale_name)}</small>"
    return f'<li><a href="#{escape(outcome.name)}"><span>{words}</span><span class="tally">{tally}</span></a></li>'


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _section(section: Section, number: int, data: dict[str, dict[str, object]]) -> str:
    outcome, experiment = section.outcome, section.outcome.experiment
    known = PageData(outcome)
    figure = f'<p class="nothing">{escape(section.reason)}</p>'
    if section.svg is not None:
        figure = inline(section.svg, prefix=f"s{number}-", title=experiment.title, label=known.mark)
    table = _table(outcome, known) if outcome.rows else ""
    data[outcome.name] = {"runs": known.runs, "items": known.items}
    progress = outcome.progress()
    return f"""<section id="{escape(outcome.name)}">
<h2>{escape(experiment.title)} <span class="scale">{escape(outcome.scale_name)}</span></h2>
<p>{escape(experiment.about)}</p>
{f'<p class="progress">{escape(progress)}.</p>' if progress else ""}
<figure>{figure}<figcaption>{escape(outcome.scale.about)}</figcaption></figure>
{_claims(outcome)}
{table}
{_list("Not in this figure", experiment.missing)}
{_list("Failed runs", map(failed, outcome.failures), "failures")}
{_provenance(outcome)}
</section>"""


def _claims(outcome: Outcome) -> str:
    lines = []
    for claim, verdict, numbers in outcome.verdicts():
        remark = outcome.scale.remarks.get(claim.name, "")
        lines.append(
            f'<li class="{_class(verdict)}"><strong><b aria-hidden="true">{SYMBOLS[verdict]}</b> {verdict}</strong>'
            f"<div><p>{escape(claim.text)} <cite>{escape(claim.source)}</cite></p>"
            f'<p class="numbers">{escape(numbers)}</p>{f"<p>{escape(remark)}</p>" if remark else ""}</div></li>'
        )
    return f'<h3>Claims</h3>\n<ul class="claims">{"".join(lines)}</ul>' if lines else ""


def _table(outcome: Outcome, known: PageData) -> str:
    names = headings(outcome)
    heads = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in names)
    lines = []
    for best in outcome.best():
        columns = "".join(_cell(cell.text, cell.value) for cell in cells(outcome, best))
        lines.append(f'<tr data-item="{known.line(best)}">{columns}</tr>')
    body = "\n".join(lines)
    return f"""<h3>Best runs</h3>
<div class="table"><table><thead><tr>{heads}</tr></thead>
<tbody>{body}</tbody></table></div>"""


def _cell(text: str, value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="number" data-value="{float(value):.12g}">{escape(text)}</td>'
    nothing = ' class="nothing" data-value=""' if value is None else ""
    return f"<td{nothing}>{escape(text)}</td>"


def _list(heading: str, lines: Iterable[str], kind: str = "") -> str:
    found = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<h3>{heading}</h3>\n<ul class="{kind}">{found}</ul>' if found else ""


def _provenance(outcome: Outcome) -> str:
    if not outcome.rows:
        return ""
    return f'<p class="provenance">{escape(outcome.provenance())}; by <code>{escape(outcome.command)}</code>.</p>'
