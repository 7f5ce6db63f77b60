"""Claims of Based about its Figure 1 (Sec. 1 and App. B.2.2), as predicates on results."""

import itertools

from experiments.frontier import PERFECT, SAME, more_recalls_more
from jaxzoo.sweep import Claim, Finding, Missing, Results

LINEAR, WINDOW, BASED = "Linear attention", "Sliding window", "Based"
MODELS = (LINEAR, WINDOW, BASED)
SECONDS = "seconds"
"""Metric of a time."""


def _recall(results: Results, model: str) -> dict[int, float]:
    """Accuracy of a model by window.

    Raises:
      Missing: there are fewer than two windows.
    """
    where = {"panel": "recall", "model": model}
    windows = results.values("window", **where)
    if len(windows) < 2:
        raise Missing(f"fewer than two windows of {model}")
    return {window: results.score(window=window, **where) for window in windows}


def _times(results: Results) -> dict[int, float]:
    """Seconds by window.

    Raises:
      Missing: there are fewer than three windows.
    """
    windows = results.values("window", panel="time")
    if len(windows) < 3:
        raise Missing("fewer than three windows with a time")
    return {window: results.score(SECONDS, panel="time", window=window) for window in windows}


def _linear_struggles(results: Results) -> Finding:
    alone, both = results.score(panel="recall", model=LINEAR), max(_recall(results, BASED).values())
    return Finding(alone <= both / 2, f"linear attention alone {alone:.3f}, with a window {both:.3f} at most")


def _window_limits_recall(results: Results) -> Finding:
    scores = _recall(results, WINDOW)
    rises = more_recalls_more({WINDOW: scores})
    smallest, largest = min(scores), max(scores)
    numbers = f"window {smallest}: {scores[smallest]:.3f}, {largest}: {scores[largest]:.3f}; {rises.numbers}"
    return Finding(rises.holds and scores[smallest] <= scores[largest] / 2, numbers)


def _state_is_linear(results: Results) -> Finding:
    windows = sorted(_recall(results, WINDOW))
    found = {w: results.best(panel="recall", model=WINDOW, window=w)["state_bytes"] for w in windows}
    steps = [(found[b] - found[a]) / (b - a) for a, b in itertools.pairwise(windows)]
    numbers = f"{min(steps):,.0f} to {max(steps):,.0f} bytes for each token of the window"
    return Finding(min(steps) > 0.99 * max(steps), numbers)


def _time_is_not_linear(results: Results) -> Finding:
    times = _times(results)
    first, last = min(times), max(times)
    slope = (times[last] - times[first]) / (last - first)
    off = {w: seconds / (times[first] + slope * (w - first)) - 1 for w, seconds in times.items()}
    worst = max(off, key=lambda w: abs(off[w]))
    numbers = f"window {worst} takes {off[worst]:+.0%} of what the line from {first} to {last} says"
    return Finding(abs(off[worst]) > 0.1, numbers)


def _small_windows_cost_alike(results: Results) -> Finding:
    times = _times(results)
    if not {16, 64} <= set(times):
        raise Missing("no times of windows 16 and 64")
    ratio = times[64] / times[16]
    return Finding(ratio <= 1.2, f"a window of 64 takes {ratio:.2f} times as long as one of 16")


def _complement(results: Results) -> Finding:
    alone, window, both = results.score(panel="recall", model=LINEAR), _recall(results, WINDOW), _recall(results, BASED)
    shared = [w for w in both if w in window]
    if not shared:
        raise Missing("no window that both models have")
    leads = {w: both[w] - max(alone, window[w]) for w in shared if max(alone, window[w]) < PERFECT}
    if not leads:
        raise Missing("a window alone is perfect wherever it was tried")
    best = max(leads, key=lambda w: leads[w])
    numbers = f"both lead by {min(leads.values()):+.3f} to {leads[best]:+.3f} (window {best})"
    return Finding(min(leads.values()) > -SAME and leads[best] >= SAME, numbers)


CLAIMS = (
    Claim(
        name="linear-struggles",
        text="Linear attention alone does not solve recall (half of what it reaches with a window, at most).",
        source="Based, Sec. 1",
        holds=_linear_struggles,
    ),
    Claim(
        name="window-limits",
        text="Sliding windows alone recall as far as they reach: more with a larger one (in four of five pairs), the "
        "smallest at most half of what the largest does.",
        source="Based, Sec. 1",
        holds=_window_limits_recall,
    ),
    Claim(
        name="state-linear",
        text="The state grows linearly with the window.",
        source="Based, Sec. 1",
        holds=_state_is_linear,
    ),
    Claim(
        name="time-not-linear",
        text="The time does not (somewhere 10 % off the line between the ends).",
        source="Based, Sec. 1",
        holds=_time_is_not_linear,
    ),
    Claim(
        name="small-windows-alike",
        text="A window of 64 takes about as long as one of 16 (1.2 times at most); the paper says so of products of "
        "matrices of these sizes on tensor cores.",
        source="Based, App. B.2.2",
        holds=_small_windows_cost_alike,
    ),
    Claim(
        name="complement",
        text="Together they recall more: with no window less than the better one alone, with some window more.",
        source="Based, Sec. 1",
        holds=_complement,
    ),
)
