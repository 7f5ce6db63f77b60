"""A sweep with its results, as data alone: best runs, verdicts, missing points, and provenance."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxzoo.sweep.claims import Verdict
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.experiment import Point, coordinates
from jaxzoo.sweep.results import BITS, OVER, SCORE, Missing, Results, Row, SeedScore

Failure = Mapping[str, Any]
"""A run that ended without a result: `id` (of the run), `point` (its coordinates) and `error` (one line)."""


class Best(NamedTuple):
    """The score of some points that differ in learning rate and seed alone."""

    where: Point
    """The coordinates that they share."""
    score: SeedScore | None
    """The best mean over the seeds; None: all runs diverged."""
    row: Row
    """The best run."""


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
    """The experiment's own table, its headings first."""
    failures: Sequence[Failure] = ()
    """Contents of `failures/`."""

    @property
    def command(self) -> str:
        """Command that made it."""
        return f"python -m jaxzoo.sweep --experiment {self.about.experiment} --scale {self.about.scale}"

    @property
    def axes(self) -> list[str]:
        """The coordinates of the points but those over which the best counts."""
        return [axis for axis in self.about.axes if axis not in OVER]

    @property
    def tuned(self) -> list[str]:
        """The coordinates over which the best counts."""
        return [axis for axis in self.about.axes if axis in OVER]

    @property
    def metrics(self) -> list[str]:
        """The metrics of the table: bits per byte and accuracy, or all where nothing is trained."""
        found = dict.fromkeys(name for row in self.rows for name in row["metrics"])
        return [name for name in (BITS, SCORE) if name in found] or list(found) or [SCORE]

    def best(self) -> list[Best]:
        """The scores, in the order of the points."""
        groups: dict[Any, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple(row["point"].get(axis) for axis in self.axes), []).append(row)
        found: list[Best] = []
        for place, rows in groups.items():
            # The first metric that the rows have chooses the best run.
            name = next((name for name in self.metrics if any(name in row["metrics"] for row in rows)), SCORE)
            where = dict(zip(self.axes, place, strict=True))
            try:
                score = Results(rows).seeds(name)
                found.append(Best(where, score, score.rows[0]))
            except Missing:
                found.append(Best(where, None, rows[0]))
        return found

    def progress(self) -> str:
        """A sentence on the points that have no result; empty: all have."""
        made = {_key(row["point"]) for row in self.rows}
        total = self.about.n_runs
        if len(made) >= total:
            return ""
        failed = len({_key(failure["point"]) for failure in self.failures} - made)
        return f"{len(made)} of {total} points are finished, {total - len(made)} are missing" + (
            f", {failed} of them because their run failed" if failed else ""
        )

    def provenance(self) -> str:
        """A line on the results, of which there is one at least: machines, dates, versions, commits, CPU-hours."""
        dates = sorted({str(row["date"])[:10] for row in self.rows})
        runs = {row["id"]: row["cpu_seconds"] for row in self.rows}
        hours = sum(seconds for seconds in runs.values() if seconds) / 3600
        return "; ".join(
            [
                f"Made on {_distinct(self.rows, 'machine')}",
                dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
                _distinct(self.rows, "versions"),
                f"commit {_distinct(self.rows, 'commit')}",
                f"{len(runs)} runs, {hours:.3g} CPU-hours",
            ]
        )


def number(value: Any) -> str:
    """A value of a table: integers in groups of three digits, other numbers with four digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def metric(name: str, value: Any) -> str:
    """The value of a metric: an accuracy with three decimals, else as `number`."""
    return f"{value:.3f}" if "accuracy" in name and isinstance(value, int | float) else number(value)


def failed(failure: Failure) -> str:
    """A failure as a line."""
    return f"{coordinates(failure['point'])}: {failure['error']}"


def _key(point: Point) -> frozenset[tuple[str, Any]]:
    return frozenset(point.items())


def _distinct(rows: Iterable[Row], key: str) -> str:
    """The distinct values of a key, in words."""
    found: set[str] = set()
    for value in (row[key] for row in rows):
        if isinstance(value, Mapping):
            found.add(", ".join(f"{name} {version}" for name, version in value.items()))
        else:
            found.add("unknown" if value is None else str(value))
    return " and ".join(sorted(found))
