"""Results of a sweep, and the claims of a paper as predicates on them."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
"""A finished run at a point, one line of `results.jsonl`, with these keys.

`point` (its coordinates), `id` (of the run), `status` (`finished` or `diverged`), `metrics` (the last validation, by
name; empty if diverged), `curve` (`train`: pairs of step and loss; `valid`: pairs of step and accuracy), `steps`
(made), `seconds`, `cpu_seconds`, `flops` (of the training, by our count), `n_parameters`, `state_bytes` (of one
sequence of the longest length, measured from the arrays; None: does not stream), `config`, `versions`, `commit`,
`machine`, `date`. What is computed in place of a run has all but `curve`, `steps`, `flops`, `n_parameters`,
`state_bytes` and `config`.
"""

OVER = ("learning_rate", "seed")
"""Axes over which the best run counts, as in the papers."""
SCORE = "valid/accuracy"


class Missing(LookupError):
    """The sweep has no finished run at such a point."""


class Results:
    """The finished runs of a sweep.

    Args:
      rows: those of `results.jsonl`.
    """

    def __init__(self, rows: Sequence[Row]):
        self.rows = list(rows)

    def values(self, axis: str, **where: Any) -> list[Any]:
        """The distinct values of an axis among the runs at `where`: numbers sorted, all else as they come."""
        found = list(dict.fromkeys(row["point"][axis] for row in self.select(**where)))
        return sorted(found) if all(isinstance(value, int | float) for value in found) else found

    def select(self, **where: Any) -> list[Row]:
        """The runs whose points have these coordinates; a tuple or list names several values."""
        return [row for row in self.rows if all(_among(row["point"].get(axis), value) for axis, value in where.items())]

    def best(self, metric: str = SCORE, **where: Any) -> Row:
        """The run with the largest metric; one that diverged counts as none.

        Raises:
          Missing: there is none.
        """
        rows = [row for row in self.select(**where) if metric in row["metrics"]]
        if not rows:
            raise Missing("no finished run at " + ", ".join(f"{axis} {value}" for axis, value in where.items()))
        return max(rows, key=lambda row: row["metrics"][metric])

    def score(self, metric: str = SCORE, **where: Any) -> float:
        """The metric of the best run. Raises `Missing`."""
        return self.best(metric, **where)["metrics"][metric]


def ranked(rows: Iterable[Row], metric: str = SCORE) -> list[Row]:
    """Runs from the largest metric to the smallest; those without it, such as those that diverged, come last."""
    return sorted(rows, key=lambda row: row["metrics"].get(metric, -math.inf), reverse=True)


def _among(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple | list) else value == wanted


class Finding(NamedTuple):
    """Result of testing a claim."""

    holds: bool
    """Whether all of it holds."""
    numbers: str
    """The numbers that it rests on, in words: `attention 1.00 at d 16; hyena 0.31 at most`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper as a predicate on results, whatever their scale."""

    name: str
    """A few letters, unique in its experiment."""
    text: str
    """The paper's statement in our words."""
    source: str
    """Place in the paper: `Zoology, Sec. 4.3, Claim 1`."""
    holds: Callable[[Results], Finding]
    """The predicate; it may raise `Missing`, and the claim is not tested then."""


class Verdict(NamedTuple):
    """A claim with its verdict."""

    claim: Claim
    verdict: str
    """`held`, `not held` or `not tested`."""
    numbers: str
    """Numbers of the finding, or the missing point."""


def judge(claim: Claim, results: Results) -> Verdict:
    """Tests a claim on results."""
    try:
        finding = claim.holds(results)
    except Missing as missing:
        return Verdict(claim, "not tested", str(missing))
    return Verdict(claim, "held" if finding.holds else "not held", finding.numbers)
