"""Claims of a paper as predicates on results, with positive controls and made-up rows that break them.

A model that has learned nothing would confirm every claim about its failures. A claim therefore has controls: points at
which its models learn. A model that fails its control is left out; a claim without models is not tested.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxzoo.sweep.results import SCORE, Missing, Results, Row

MARGIN = 0.1
"""Accuracy above the guessing line from which a model has learned something."""
SOLVED = 0.9
"""Accuracy above which a task is solved (Zoology, Sec. 4.3)."""
CHANCE = 0.05
"""Probability below which a trend is not due to chance."""
ARRANGEMENTS = 5_040
DRAWS = 1_999
"""Largest number of arrangements that a permutation test tries; if there are more, so many random ones."""

HELD = "held"
NOT_HELD = "not held"
NOT_TESTED = "not tested"


class Finding(NamedTuple):
    """Result of testing a claim."""

    holds: bool
    """Whether the claim holds."""
    numbers: str
    """The numbers of the verdict, as text: `attention 1.00 at d 16; hyena 0.31 at most`."""


@dataclasses.dataclass(frozen=True)
class Control:
    """A positive control: at some run of `where`, each model must exceed `above` and the guessing line."""

    where: Mapping[str, Any]
    """Coordinates of the runs; a tuple names several values."""
    each: Sequence[str]
    """Axes whose values are separate models: each needs the control, and one that fails it is left out."""
    above: float
    """Accuracy that must be exceeded, besides the guessing line plus `MARGIN`."""
    metric: str


def learned(*, each: Sequence[str] = ("model",), metric: str = SCORE, **where: Any) -> Control:
    """Control of a claim that compares recall: `MARGIN` above the guessing line."""
    return Control(where, each, 0.0, metric)


def solved(*, each: Sequence[str] = ("model",), metric: str = SCORE, **where: Any) -> Control:
    """Control of a claim that a model fails, or needs more: it solves a smaller case."""
    return Control(where, each, SOLVED, metric)


class Change(NamedTuple):
    """A change of made-up rows."""

    where: Mapping[str, Any] | Callable[[Any], bool]
    """Coordinates of the changed rows, or a predicate on points."""
    to: float | Mapping[str, Any] | Callable[[Any], float | Mapping[str, Any]]
    """New accuracy, or values by name of a metric or key of the row, or a function from the point to one of these."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper as a predicate on results, whatever their scale. Raises `ValueError`."""

    name: str
    """A few letters, unique in its experiment."""
    text: str
    """Tested statement, with its numbers."""
    quote: str
    """The paper's sentence, quoted."""
    source: str
    """Place in the paper: `Zoology, Sec. 4.3, Claim 1`."""
    rule: str
    """Reason for tolerance and direction of the predicate, a line."""
    controls: Sequence[Control]
    """Positive controls. If empty, the predicate gets no accuracies: the claim is about bytes, times or operations."""
    holds: Callable[[Results], Finding]
    """The predicate; if it raises `Missing`, the claim is not tested."""
    broken_by: Sequence[Change]
    """Changes of the experiment's made-up rows (`Experiment.made_up`), each of which must make the claim fail."""

    def __post_init__(self) -> None:
        for field, kind in (("controls", Control), ("broken_by", Change)):
            value = getattr(self, field)
            if not isinstance(value, Sequence) or not all(isinstance(each, kind) for each in value):
                raise ValueError(f"Claim.{field} of {self.name!r} must be a sequence of {kind.__name__}")
        if not self.broken_by:
            raise ValueError(f"Claim.broken_by of {self.name!r} must change something: a claim that nothing breaks")


class Verdict(NamedTuple):
    """A claim with its verdict, an item of `claims.json`."""

    name: str
    quote: str
    text: str
    source: str
    rule: str
    verdict: str
    """`held`, `not held` or `not tested`."""
    numbers: str
    """Numbers of the finding, or what is missing."""
    control: str
    """Models that passed the controls, and models that are left out."""
    remark: str | None
    """Remark on the verdict at this scale."""


def judge(claim: Claim, results: Results, remark: str | None = None) -> Verdict:
    """Tests a claim on results."""
    control: list[str] = []
    try:
        for each in claim.controls:
            results = _with_control(each, results, control)
        if not claim.controls:
            rows: list[Row] = []
            for row in results.rows:
                others = {n: x for n, x in row["metrics"].items() if "accuracy" not in n and "loss" not in n}
                rows.append({**row, "metrics": others})
            results = Results(rows, results.unfinished)
        holds, numbers = claim.holds(results)
        verdict = HELD if holds else NOT_HELD
    except Missing as missing:
        verdict = NOT_TESTED
        numbers = str(missing)
    texts = (claim.name, claim.quote, claim.text, claim.source, claim.rule)
    return Verdict(*texts, verdict, numbers, "; ".join(control), remark)


def _with_control(control: Control, results: Results, words: list[str]) -> Results:
    """The results without models that fail a control; appends to `words` which pass. Raises `Missing` if none does."""
    rows = results.select(**control.where)
    if not rows:
        raise Missing("no finished run at " + ", ".join(f"{axis} {value}" for axis, value in control.where.items()))
    names = list(dict.fromkeys(tuple(row["point"].get(axis) for axis in control.each) for row in rows))
    failing: list[Row] = []
    passed = []
    failed = []
    for name in names:
        where = {**control.where, **dict(zip(control.each, name, strict=True))}
        label = " ".join(map(str, name)) or "the model"
        scores = results.scores(control.metric, **where)
        found = [(score.mean, score.rows[0].get("guess", {}).get(control.metric, 0.0)) for score in scores]
        # The point that is farthest above its threshold.
        best, line = max(found, key=lambda pair: pair[0] - max(control.above, pair[1] + MARGIN), default=(0.0, 0.0))
        if best > max(control.above, line + MARGIN):
            passed.append(f"{label} {best:.2f}")
            continue
        failing += results.select(**where)
        if found:
            failed.append(f"{label} ({best:.2f} at most; guessing {line:.2f})")
    need = f"above {control.above:g}" if control.above else f"{MARGIN:g} above guessing"
    if not passed:
        reached = ", ".join(failed) or "no finished run"
        raise Missing(f"no model has learned: {reached}; it takes a run {need}, by more steps or on a smaller case")
    words.append(f"seen {need}: {', '.join(passed)}" + (f"; left out: {', '.join(failed)}" if failed else ""))
    gone = {id(row) for row in failing}
    return Results([row for row in results.rows if id(row) not in gone], results.unfinished)


def chance(
    observed: float, groups: Sequence[Sequence[float]], statistic: Callable[[list[list[float]]], float]
) -> float:
    """Permutation test: probability that values in random order, within each group, reach a statistic.

    If orders are drawn at random, the observed order counts as one of them (Phipson and Smyth 2010).

    Args:
      observed: statistic of the observed order.
      groups: values in the order of their independent variable; `statistic` is a function of groups.

    Raises `Missing` if there are too few values.
    """
    groups = [list(group) for group in groups if len(group) > 1]
    total = math.prod(math.factorial(len(group)) for group in groups)
    if total * CHANCE < 1:
        sizes = ", ".join(str(len(group)) for group in groups) or "no"
        raise Missing(f"too few sizes to tell a trend from chance: {sizes}; it takes 4 of one model, or more models")
    if total <= ARRANGEMENTS:
        orders = itertools.product(*(itertools.permutations(group) for group in groups))
        reached = [statistic([list(group) for group in order]) >= observed - 1e-12 for order in orders]
    else:
        rng = random.Random(0)
        orders = ([rng.sample(group, len(group)) for group in groups] for _ in range(DRAWS))
        reached = [True, *(statistic(order) >= observed - 1e-12 for order in orders)]
    return sum(reached) / len(reached)


def made_up_row(point: Mapping[str, Any], content: float | Mapping[str, Any], number: int) -> Row:
    """A made-up row, for the check of claims; `content` is the result of `Experiment.made_up`."""
    row = {"point": dict(point), "id": f"made-up-{number}", "status": "finished", "metrics": {}, "guess": {}}
    row |= {"steps": 1, "flops": 1.0, "n_parameters": 1, "state_bytes": 1, "config": None}
    return _changed(row, content)


def changed(rows: Sequence[Row], changes: Sequence[Change]) -> list[Row]:
    """Made-up rows after some changes; a change that matches no row has no effect."""
    rows = list(rows)
    for where, to in changes:
        for i, row in enumerate(rows):
            if where(row["point"]) if callable(where) else Results([row]).select(**where):
                rows[i] = _changed(row, to(row["point"]) if callable(to) else to)
    return rows


def _changed(row: Row, content: float | Mapping[str, Any]) -> Row:
    if not isinstance(content, Mapping):
        names = [SCORE, *(name for name in row["metrics"] if "accuracy" in name)]
        content = dict.fromkeys(names, float(content))
    metrics = {name: value for name, value in content.items() if name not in row or name == "metrics"}
    metrics |= metrics.pop("metrics", {})
    others = {name: value for name, value in content.items() if name in row and name != "metrics"}
    return {**row, **others, "metrics": {**row["metrics"], **metrics}}


def complaints(
    claims: Sequence[Claim], rows: Sequence[Row], elsewhere: Sequence[Callable[[], Sequence[Row]]]
) -> list[str]:
    """Faults of claims on made-up rows: a claim raises, does not hold, or still holds after its changes at every scale.

    `elsewhere` has the rows of other scales. A claim that is not tested, because points are missing, is no fault.
    """
    names = [claim.name for claim in claims]
    found = [f"two claims have the name {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
    for claim in claims:
        try:
            judge(claim, Results([]))
            before = judge(claim, Results(rows))
            broken = _is_broken(claim, rows) or any(_is_broken(claim, other()) for other in elsewhere)
        except Exception as error:
            found.append(f"claim {claim.name!r} fails on made-up rows: {type(error).__name__}: {error}")
            continue
        if before.verdict == NOT_HELD:
            found.append(f"claim {claim.name!r} does not hold on the made-up rows: {before.numbers}")
        elif not broken:
            found.append(f"claim {claim.name!r} still holds, or cannot be tested, after its changes (broken_by)")
    return found


def _is_broken(claim: Claim, rows: Sequence[Row]) -> bool:
    return judge(claim, Results(changed(rows, claim.broken_by))).verdict == NOT_HELD
