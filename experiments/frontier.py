"""Recall against the bytes of the state: Pareto frontiers, and claims and curves from them.

The accuracy of a state size is the best score (the mean over the seeds) of all runs with exactly as many bytes. The
frontier of some models at a budget is their best accuracy with at most so many bytes. Models that do not stream have
no state and no frontier.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from experiments.recall import in_words
from jaxzoo.sweep import Finding, Missing, Results
from jaxzoo.sweep.claims import CHANCE, chance
from jaxzoo.sweep.curves import accuracy_label, curve, guessing
from jaxzoo.sweep.results import OVER, SCORE, SEED, Row
from jaxzoo.utils.figure import Axes, Figure, add_legend, panels, plain_log_ticks

SAME = 0.01
"""Largest difference of accuracies that count as equal."""
PERFECT = 0.99
"""Accuracy that cannot be improved."""


def by_state(results: Results, *, metric: str = SCORE, **where: Any) -> dict[int, float]:
    """Returns the best accuracy by state bytes, rising. Raises `Missing` if no finished run has a state."""
    found: dict[int, float] = {}
    by_size: dict[int, list[Row]] = {}
    for row in results.select(**where):
        if row["state_bytes"] is not None:
            by_size.setdefault(row["state_bytes"], []).append(row)
    for size, rows in by_size.items():
        with contextlib.suppress(Missing):
            found[size] = Results(rows).score(metric)
    if not found:
        raise Missing(f"no finished run with a state at {in_words(where)}")
    return dict(sorted(found.items()))


def frontier(results: Results, budget: float, *, metric: str = SCORE, **where: Any) -> float | None:
    """Returns the best accuracy with at most `budget` bytes; None if every state is larger. Raises `Missing`."""
    return _within(by_state(results, metric=metric, **where), budget)


def _within(scores: Mapping[int, float], budget: float) -> float | None:
    return max((score for size, score in scores.items() if size <= budget), default=None)


def leads(
    results: Results,
    budgets: Iterable[float],
    ours: dict[str, Any],
    theirs: dict[str, Any],
    *,
    metric: str = SCORE,
) -> dict[float, float]:
    """Returns, by budget, the difference of the frontiers of the runs at `ours` and at `theirs`. Budgets above the
    largest state of `ours` are left out. Raises `Missing` if either has no run, they share no budget, or runs at
    `theirs` are not finished."""
    results.require(**theirs)
    found: dict[float, float] = {}
    scores = [by_state(results, metric=metric, **where) for where in (ours, theirs)]
    for budget in (budget for budget in budgets if budget <= max(scores[0])):
        a, b = (_within(of_one, budget) for of_one in scores)
        if a is not None and b is not None:
            found[budget] = a - b
    if not found:
        raise Missing(f"{in_words(ours)}: no state as large as those of {in_words(theirs)}")
    return found


def more_recalls_more(scores_of: Mapping[str, Mapping[int, float]], *, share: float = 0.8) -> Finding:
    """Tests whether the larger size wins at least `share` of all pairs of sizes of one model, and more than chance
    does. Pairs of perfect accuracies do not count. Chance is a permutation test: accuracies in random order within each
    model win as many pairs with a probability of at most `CHANCE`. Raises `Missing` if there are too few sizes."""
    won, pairs, words = 0, 0, []
    groups = {model: [scores[size] for size in sorted(scores)] for model, scores in scores_of.items()}
    for model, scores in groups.items():
        rises, n = _rises(scores)
        won, pairs = won + rises, pairs + n
        words.append(f"{model} {rises} of {n}")
    if not pairs:
        raise Missing(f"no two sizes of {' or '.join(scores_of)} that leave room between them")
    p = chance(won, list(groups.values()), lambda orders: sum(_rises(order)[0] for order in orders))
    numbers = f"the larger one recalls more in {', '.join(words)} pairs of sizes; by chance with p = {p:.2g}"
    return Finding(won >= share * pairs and p <= CHANCE, numbers)


def _rises(scores: Sequence[float]) -> tuple[int, int]:
    """Counts pairs of sizes whose larger one recalls more, and all pairs that are not both perfect."""
    pairs = [(a, b) for a, b in combinations(scores, 2) if a < PERFECT or b < PERFECT]
    return sum(b > a for a, b in pairs), len(pairs)


def draw_by_state(results: Results, models: Iterable[str], *, title: str) -> Figure:
    """Draws the best accuracy at each state size of some models."""
    figure, (axes,) = panels(1, 1, size=(4.8, 4.2), title=title)
    for series, model in enumerate(models):
        size_curve(axes[0], results, label=model, series=series, model=model)
    guessing(axes[0], results.rows)
    explain_marks(axes[0], results)
    finish_by_state(axes[0], results)
    add_legend(figure)
    return figure


def explain_marks(panel: Axes, results: Results) -> None:
    """Adds the marks of `size_curve` that `results` have to the legend."""
    (hollow,) = panel.plot([], [], "o", color="#777777", label="a smaller one recalls more")
    hollow.set(markersize=4.5, markerfacecolor="white")
    if any(SEED in row["point"] for row in results.rows):
        panel.plot([], [], "|", color="#777777", markersize=9, label="range of the seeds")


def finish_by_state(panel: Axes, results: Results) -> None:
    panel.set(xlabel="state of a sequence, bytes", ylabel=accuracy_label(results), ylim=(-0.02, 1.02))
    plain_log_ticks(panel, "x")


def size_curve(
    panel: Axes,
    results: Results,
    *,
    label: str,
    series: int,
    size: str = "state_bytes",
    metric: str = SCORE,
    **where: Any,
) -> None:
    """Draws the best accuracy at each size (`state_bytes` or `n_parameters`) of the models at the coordinates `where`;
    the line joins the frontier. `series` is the index of the style."""
    best: dict[int, Row] = {}
    for x in {row[size] for row in results.select(**where)} - {None}:
        with contextlib.suppress(Missing):
            best[x] = Results([row for row in results.select(**where) if row[size] == x]).best(metric)
    points = [{axis: value for axis, value in best[x]["point"].items() if axis not in OVER} for x in sorted(best)]
    style = {"label": label, "series": series, "metric": metric, "frontier": True}
    curve(panel, results, x=lambda row: row[size], points=points, **style)
