"""Results of a sweep: rows by point, and the score of a model as the mean over its seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

Row = Mapping[str, Any]
"""A finished run at a point, one line of `results.jsonl`, with these keys.

`point` (its coordinates), `id` (of the run), `status` (`finished` or `diverged`), `metrics` (the last validation, by
name; empty if diverged), `curve` (`train`: pairs of step and loss; `valid`: pairs of step and accuracy), `steps`
(made), `guess` (by metric, the accuracy of guessing: `DataConfig.guessing_lines`), `seconds`, `cpu_seconds`, `flops`
(of the training, by our count), `n_parameters`, `state_bytes` (of one sequence of the longest length, measured from the
arrays; None: does not stream), `config`, `versions`, `commit`, `machine`, `date`. A `Measurement` lacks `curve`,
`steps`, `guess`, `flops`, `n_parameters`, `state_bytes` and `config`.
"""

Item = TypeVar("Item")

RATE = "learning_rate"
SEED = "seed"
OVER = (RATE, SEED)
"""Axes over which a score is taken: the mean over the seeds at the learning rate with the best mean."""
SCORE = "valid/accuracy"
BITS = "valid/bits_per_byte"
"""Metric of text and DNA; smaller is better, as for every metric whose name ends with it."""


class SeedScore(NamedTuple):
    """Metric of a model at its best learning rate, over the seeds that ran there; a seed that diverged counts as 0."""

    mean: float
    low: float
    high: float
    rows: Sequence[Mapping[str, Any]]
    """Runs of the seeds, best first."""


class Missing(LookupError):
    """The sweep has no finished run at such a point."""


class Results:
    """Finished runs of a sweep: rows of `results.jsonl`, and points without a finished run at their learning rate."""

    def __init__(self, rows: Sequence[Row], unfinished: Iterable[Mapping[str, Any]] = ()):
        self.rows: list[Row] = list(rows)
        self.unfinished: list[Mapping[str, Any]] = list(unfinished)

    @classmethod
    def of(cls, rows: Sequence[Row], points: Iterable[Mapping[str, Any]]) -> "Results":
        """The finished runs of a sweep with these points."""
        tried = {_without_seed(row["point"]) for row in rows}
        return cls(rows, [point for point in points if _without_seed(point) not in tried])

    def require(self, **where: Any) -> None:
        """Raises `Missing` if a point at `where` has no finished run: missing runs could make a claim look true."""
        for point in self.unfinished:
            if _is_at(point, where):
                raise Missing("not finished: " + ", ".join(f"{axis} {value}" for axis, value in point.items()))

    def values(self, axis: str, **where: Any) -> list[Any]:
        """The distinct values of an axis among the runs at `where`: numbers sorted, others in the order of the rows."""
        found = list(dict.fromkeys(row["point"][axis] for row in self.select(**where)))
        return sorted(found) if all(isinstance(value, int | float) for value in found) else found

    def select(self, **where: Any) -> list[Row]:
        """The runs whose points have these coordinates; a tuple or list names several values."""
        return [row for row in self.rows if _is_at(row["point"], where)]

    def scores(self, metric: str = SCORE, **where: Any) -> list[SeedScore]:
        """Scores of the runs at `where`, one for each point without seed.

        If the learning rates of a point have different numbers of seeds, only those with the most seeds count.
        """
        places: dict[Any, dict[Any, list[Row]]] = {}
        for row in self.select(**where):
            place = place_of(row["point"])
            places.setdefault(place, {}).setdefault(row["point"].get(RATE), []).append(row)
        found: list[SeedScore] = []
        for rates in places.values():
            most = max(map(len, rates.values()))
            for rows in (rows for rows in rates.values() if len(rows) == most):
                values = [row["metrics"].get(metric) for row in rows]
                if any(value is not None for value in values):
                    worst = math.inf if metric.endswith(BITS) else 0.0
                    numbers = [worst if value is None else value for value in values]
                    found.append(SeedScore(statistics.fmean(numbers), min(numbers), max(numbers), ranked(rows, metric)))
        return found

    def seeds(self, metric: str = SCORE, **where: Any) -> SeedScore:
        """The score with the best mean of all `scores` at `where`. Raises `Missing` if there is no finished run."""
        found = self.scores(metric, **where)
        if not found:
            raise Missing("no finished run at " + ", ".join(f"{axis} {value}" for axis, value in where.items()))
        return (min if metric.endswith(BITS) else max)(found, key=lambda score: score.mean)

    def best(self, metric: str = SCORE, **where: Any) -> Row:
        """The best run of the score at `where`. Raises `Missing`."""
        return self.seeds(metric, **where).rows[0]

    def score(self, metric: str = SCORE, **where: Any) -> float:
        """The mean over the seeds at `where`. Raises `Missing`."""
        return self.seeds(metric, **where).mean


def _is_at(point: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether a point has these coordinates."""
    return all(point.get(a) in (value if isinstance(value, tuple | list) else (value,)) for a, value in where.items())


def place_of(point: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Coordinates of a point without its learning rate and seed."""
    return tuple(item for item in point.items() if item[0] not in OVER)


def _without_seed(point: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset(item for item in point.items() if item[0] != SEED)


def ranked(rows: Iterable[Row], metric: str = SCORE) -> list[Row]:
    """Runs from the best metric to the worst; those without it, such as those that diverged, come last."""
    sign = -1 if metric.endswith(BITS) else 1
    return sorted(rows, key=lambda row: sign * row["metrics"].get(metric, -sign * math.inf), reverse=True)


def thinned(points: Sequence[Item], most: int) -> list[Item]:
    """A curve of at most `most` points, evenly chosen, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
