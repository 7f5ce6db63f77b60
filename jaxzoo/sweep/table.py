"""The table of a sweep: a line for the best run of each group of points; as Markdown."""

from collections.abc import Iterable, Sequence

from jaxzoo.sweep.outcome import Best, Outcome, failed, metric, number
from jaxzoo.sweep.results import BITS, SEED, SeedScore

SYMBOLS = {"held": "✓", "not held": "✗", "not tested": "○"}
"""Symbols of the verdicts; the word always stands next to its symbol."""
FACTS = {"steps": "steps", "state_bytes": "state bytes", "n_parameters": "parameters"}
"""Keys of a row that the table shows where any run has them, and their headings."""
UNSTABLE = 0.2
"""Largest spread of the accuracies of seeds that has no mark."""


def headings(outcome: Outcome) -> list[str]:
    """Headings of the columns."""
    metrics = [name.removeprefix("valid/") for name in outcome.metrics]
    tuned = [f"best {axis}" for axis in outcome.tuned]
    return [*outcome.axes, *metrics, *tuned, *_facts(outcome).values()]


def cells(outcome: Outcome, best: Best) -> list[str]:
    """The line of a group."""
    if best.score is None:
        scores = ["diverged"] * len(outcome.metrics)
        tuned = ["-"] * len(outcome.tuned)
    else:
        scores = [_metric(name, best.score) for name in outcome.metrics]
        # The learning rate of the score, and the number of its seeds, or its only seed.
        point = best.row["point"]
        n = len(best.score.rows)
        tuned = [f"{n} seeds" if axis == SEED and n > 1 else number(point.get(axis)) for axis in outcome.tuned]
    facts = [number(best.row.get(key)) for key in _facts(outcome)]
    return [*map(number, best.where.values()), *scores, *tuned, *facts]


def markdown(outcome: Outcome) -> str:
    """The text of `table.md`."""
    about = outcome.about
    parts = [f"# {_text(about.title)} ({_text(about.scale)})", _text(about.about)]
    if outcome.progress():
        parts += [f"{outcome.progress()}."]
    if outcome.rows:
        parts += [_table(headings(outcome), [cells(outcome, best) for best in outcome.best()])]
    if outcome.numbers:
        parts += [_table(outcome.numbers[0], outcome.numbers[1:])]
    if outcome.verdicts:
        heads = ["the paper", "tested", "source", "verdict", "numbers", "control", "remark"]
        claims: list[list[str]] = []
        for v in outcome.verdicts:
            verdict = f"{SYMBOLS[v.verdict]} {v.verdict}"
            claims.append([f"“{v.quote}”", v.text, v.source, verdict, v.numbers, v.control, v.remark or ""])
        parts += ["## Claims", _table(heads, claims)]
    parts += ["## Scale", _text(about.scale_about)]
    if about.missing:
        parts += ["## Not in this figure", "\n".join(f"- {_text(line)}" for line in about.missing)]
    if outcome.failures:
        parts += ["## Failed runs", "\n".join(f"- {_text(failed(failure))}" for failure in outcome.failures)]
    if outcome.rows:
        parts += ["## Made by", f"{_text(outcome.provenance())}; by `{outcome.command}`."]
    return "\n\n".join(parts) + "\n"


def _facts(outcome: Outcome) -> dict[str, str]:
    return {key: words for key, words in FACTS.items() if any(row.get(key) for row in outcome.rows)}


def _metric(name: str, score: SeedScore) -> str:
    """The mean over the seeds, with their range where there are several, and a mark where they are far apart."""
    values = [row["metrics"].get(name) for row in score.rows]
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if len(values) == 1:
        return metric(name, known[0])
    n_diverged = len(values) - len(known)
    if n_diverged and name.endswith(BITS):  # no number is as bad as a run that diverged
        return f"{n_diverged} of {len(values)} seeds diverged"
    low = 0.0 if n_diverged else min(known)
    high = max(known)
    text = f"{metric(name, sum(known) / len(values))} ({metric(name, low)} to {metric(name, high)})"
    return text + (", unstable" if "accuracy" in name and high - low > UNSTABLE else "")


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in (heads, rule, *lines))


def _text(words: str) -> str:
    """Text with Markdown characters escaped."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
