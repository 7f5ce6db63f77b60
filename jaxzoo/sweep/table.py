"""The report of a sweep as Markdown: best runs, claims, missing runs and provenance."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxzoo.sweep.claims import Verdict
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.experiment import Point, coordinates
from jaxzoo.sweep.results import BITS, OVER, SCORE, SEED, Missing, Results, Row, SeedScore

Failure = Mapping[str, Any]
"""A run that ended without a result: `id` (of the run), `point` (its coordinates) and `error` (one line)."""

SYMBOLS = {"held": "✓", "not held": "✗", "not tested": "○"}
"""Symbols of the verdicts."""
FACTS = {"steps": "steps", "state_bytes": "state bytes", "n_parameters": "parameters"}
"""Keys of a row and their headings; a key that no run has is left out of the table."""
RULE = "a verdict needs four learning rates and three seeds of every model"
UNSTABLE = 0.2
"""Difference of the seeds' accuracies above which a row is marked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A sweep, finished or not."""

    about: About
    """Contents of `sweep.json`."""
    rows: Sequence[Row]
    """Rows of `results.jsonl`, in the order of the points."""
    verdicts: Sequence[Verdict] = ()
    """Contents of `claims.json`."""
    numbers: Sequence[Sequence[str]] = ()
    """Table of the experiment, its headings first."""
    failures: Sequence[Failure] = ()

    def progress(self) -> str:
        """Sentence on the points without a result; empty if there are none."""
        made = {_key(row["point"]) for row in self.rows}
        total = self.about.n_runs
        if len(made) >= total:
            return ""
        n_failed = len({_key(failure["point"]) for failure in self.failures} - made)
        return f"{len(made)} of {total} points are finished, {total - len(made)} are missing" + (
            f", {n_failed} of them because their run failed" if n_failed else ""
        )


def markdown(outcome: Outcome) -> str:
    """Returns the text of `table.md`."""
    about = outcome.about
    parts = [f"# {_text(about.title)} ({_text(about.scale)})", _text(about.about)]
    if about.untuned:
        parts += [f"**Not tuned**: {about.untuned}; {RULE}."]
    if outcome.progress():
        parts += [f"{outcome.progress()}."]
    if outcome.rows:
        parts += [_table(*_best_runs(outcome))]
    if outcome.numbers:
        parts += [_table(outcome.numbers[0], outcome.numbers[1:])]
    if outcome.verdicts:
        heads = ["the paper", "tested", "source", "verdict", "numbers", "control", "remark"]
        claims: list[list[str]] = []
        for v in outcome.verdicts:
            verdict = f"{SYMBOLS[v.verdict]} {v.verdict}{', not tuned' if about.untuned else ''}"
            claims.append([f"“{v.quote}”", v.text, v.source, verdict, v.numbers, v.control, v.remark or ""])
        parts += ["## Claims", _table(heads, claims)]
    parts += ["## Scale", _text(about.scale_about)]
    if about.missing:
        parts += ["## Not in this figure", "\n".join(f"- {_text(line)}" for line in about.missing)]
    if outcome.failures:
        parts += ["## Failed runs", "\n".join(f"- {_text(failed(failure))}" for failure in outcome.failures)]
    if outcome.rows:
        command = f"jaxzoo sweep --experiment {about.experiment} --scale {about.scale}"
        parts += ["## Made by", f"{_text(_provenance(outcome.rows))}; by `{command}`."]
    return "\n\n".join(parts) + "\n"


def _best_runs(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line per group of points that differ only in learning rate and seed."""
    rows = outcome.rows
    axes = [axis for axis in outcome.about.axes if axis not in OVER]
    tuned = [axis for axis in outcome.about.axes if axis in OVER]
    known = dict.fromkeys(name for row in rows for name in row["metrics"])
    metrics = [name for name in (BITS, SCORE) if name in known] or list(known) or [SCORE]
    facts = {key: words for key, words in FACTS.items() if any(row.get(key) for row in rows)}
    heads = [*axes, *(name.removeprefix("valid/") for name in metrics), *(f"best {axis}" for axis in tuned)]
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row["point"].get(axis) for axis in axes), []).append(row)
    lines: list[list[str]] = []
    for place, group in groups.items():
        # The first metric that the group has chooses the best run.
        name = next((name for name in metrics if any(name in row["metrics"] for row in group)), SCORE)
        row = group[0]
        scores = ["diverged"] * len(metrics)
        best = ["-"] * len(tuned)
        try:
            score = Results(group).seeds(name)
        except Missing:
            pass
        else:
            row = score.rows[0]
            scores = [_metric(name, score) for name in metrics]
            n = len(score.rows)
            best = [f"{n} seeds" if axis == SEED and n > 1 else number(row["point"].get(axis)) for axis in tuned]
        lines.append([*map(number, place), *scores, *best, *(number(row.get(key)) for key in facts)])
    return [*heads, *facts.values()], lines


def _provenance(rows: Sequence[Row]) -> str:
    """Machines, dates, versions, commits and CPU-hours of the results."""
    dates = sorted({str(row["date"])[:10] for row in rows})
    runs = {row["id"]: row["cpu_seconds"] for row in rows}
    hours = sum(seconds for seconds in runs.values() if seconds) / 3600
    parts = [
        f"Made on {_distinct(rows, 'machine')}",
        dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        _distinct(rows, "versions"),
        f"commit {_distinct(rows, 'commit')}",
        f"{len(runs)} runs, {hours:.3g} CPU-hours",
    ]
    return "; ".join(parts)


def _distinct(rows: Iterable[Row], key: str) -> str:
    """The distinct values of a key as text."""
    found: set[str] = set()
    for value in (row[key] for row in rows):
        if isinstance(value, Mapping):
            found.add(", ".join(f"{name} {version}" for name, version in value.items()))
        else:
            found.add("unknown" if value is None else str(value))
    return " and ".join(sorted(found))


def _metric(name: str, score: SeedScore) -> str:
    """The mean over the seeds, and for several seeds their range, with a mark if they are far apart."""
    values = [row["metrics"].get(name) for row in score.rows]
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    is_accuracy = "accuracy" in name

    def shown(value: float) -> str:
        return f"{value:.3f}" if is_accuracy else number(value)

    if len(values) == 1:
        return shown(known[0])
    n_diverged = len(values) - len(known)
    if n_diverged and name.endswith(BITS):  # no finite number of bits stands for a diverged run
        return f"{n_diverged} of {len(values)} seeds diverged"
    low = 0.0 if n_diverged else min(known)
    high = max(known)
    text = f"{shown(sum(known) / len(values))} ({shown(low)} to {shown(high)})"
    return text + (", unstable" if is_accuracy and high - low > UNSTABLE else "")


def number(value: Any) -> str:
    """A cell of a table: integers in groups of three digits, other numbers with four digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def failed(failure: Failure) -> str:
    return f"{coordinates(failure['point'])}: {failure['error']}"


def _key(point: Point) -> frozenset[tuple[str, Any]]:
    return frozenset(point.items())


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in (heads, rule, *lines))


def _text(words: str) -> str:
    """Text with Markdown characters escaped."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
