"""Recall against the bytes of the state: Pareto frontiers, and the claims and curves that rest on them.

A state's accuracy is that of the best run with just as many bytes, over all else. The frontier of some models at a
budget is their best accuracy with at most that many bytes. Models without a state, which do not stream, have none.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING, Any

from jaxzoo.sweep import Finding, Missing, Results
from jaxzoo.sweep.figure import curve
from jaxzoo.sweep.results import OVER, SCORE, Row
from pallas_kernels.figure import add_legend, panels, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAME = 0.01
"""Accuracies that differ by less count as equal."""
PERFECT = 0.99
"""Accuracy from which on there is nothing left to gain."""


def by_state(results: Results, *, metric: str = SCORE, **where: Any) -> dict[int, float]:
    """The best accuracy by bytes of state, rising.

    Raises:
      Missing: no finished run there has a state.
    """
    found: dict[int, float] = {}
    for row in results.select(**where):
        size = row["state_bytes"]
        if size is not None and metric in row["metrics"]:
            found[size] = max(row["metrics"][metric], found.get(size, 0.0))
    if not found:
        raise Missing(f"no finished run with a state at {where}")
    return dict(sorted(found.items()))


def frontier(results: Results, budget: float, *, metric: str = SCORE, **where: Any) -> float | None:
    """The best accuracy with at most `budget` bytes; None where every state is larger. Raises `Missing`."""
    within = [score for size, score in by_state(results, metric=metric, **where).items() if size <= budget]
    return max(within, default=None)


def leads(
    results: Results, budgets: Iterable[float], ours: dict[str, Any], theirs: dict[str, Any]
) -> dict[float, float]:
    """By budget, the frontier of the runs at `ours` less that of the runs at `theirs`, where both have one.

    Raises:
      Missing: one of them has no run, or they share no budget.
    """
    found: dict[float, float] = {}
    for budget in budgets:
        a, b = frontier(results, budget, **ours), frontier(results, budget, **theirs)
        if a is not None and b is not None:
            found[budget] = a - b
    if not found:
        raise Missing(f"{ours} and {theirs} share no size of the state")
    return found


def more_state_recalls_more(results: Results, models: Iterable[str], *, share: float = 0.8) -> Finding:
    """Of all pairs of states of one model, at least `share` are won by the larger one; pairs of which both recall
    perfectly do not count.

    Raises:
      Missing: a model has no run, or there is no such pair.
    """
    won, pairs, words = 0, 0, []
    for model in models:
        scores = by_state(results, model=model)
        open_pairs = [
            (scores[small], scores[large])
            for small, large in combinations(scores, 2)
            if min(scores[small], scores[large]) < PERFECT
        ]
        rises = sum(large > small for small, large in open_pairs)
        won, pairs = won + rises, pairs + len(open_pairs)
        words.append(f"{model} {rises} of {len(open_pairs)}")
    if not pairs:
        raise Missing("no two states of one model that leave room between them")
    return Finding(won >= share * pairs, f"the larger state wins {won} of {pairs} pairs: {', '.join(words)}")


def draw_by_state(results: Results, models: Iterable[str], *, title: str) -> "Figure":
    """The figure of some models: the best accuracy at each size of the state."""
    figure, (axes,) = panels(1, 1, size=(6.4, 4.6), title=title)
    for series, model in enumerate(models):
        state_curve(axes[0], results, label=model, series=series, model=model)
    finish_by_state(axes[0])
    add_legend(figure)
    return figure


def finish_by_state(panel: "Axes") -> None:
    """Labels and limits of a panel with curves of `state_curve`."""
    panel.set(xlabel="state of a sequence, bytes", ylabel="accuracy", ylim=(-0.02, 1.02))
    plain_log_ticks(panel, "x")


def state_curve(panel: "Axes", results: Results, *, label: str, series: int, metric: str = SCORE, **where: Any) -> None:
    """Draws the best accuracy at each size of the state, from the smallest on; nothing where no run has a state."""
    best: dict[int, Row] = {}
    for row in results.select(**where):
        size = row["state_bytes"]
        if size is None or metric not in row["metrics"]:
            continue
        if size not in best or row["metrics"][metric] > best[size]["metrics"][metric]:
            best[size] = row
    points = [{axis: value for axis, value in best[size]["point"].items() if axis not in OVER} for size in sorted(best)]
    curve(
        panel,
        results,
        x=lambda row: row["state_bytes"],
        points=points,
        label=label,
        series=series,
        metric=metric,
    )
