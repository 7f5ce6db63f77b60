"""Claims of Based about its Figure 1 (Sec. 1 and App. B.2.2), as predicates on results."""

import itertools
import math
from typing import Any

from experiments.frontier import PERFECT, SAME, more_recalls_more
from jaxzoo.sweep import Change, Claim, Finding, Missing, Results, learned

LINEAR, WINDOW, BASED = "Linear attention", "Sliding window", "Based"
MODELS = (LINEAR, WINDOW, BASED)
SECONDS = "seconds"
"""Metric of a time."""


def _recall(results: Results, model: str) -> dict[int, float]:
    """Returns the accuracy of a model by window. Raises `Missing` if there are fewer than two windows."""
    where = {"panel": "recall", "model": model}
    windows = results.values("window", **where)
    if len(windows) < 2:
        raise Missing(f"fewer than two windows of {model}")
    return {window: results.score(window=window, **where) for window in windows}


def _times(results: Results) -> dict[int, float]:
    """Returns seconds by window. Raises `Missing` if there are fewer than three windows."""
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
    windows = results.values("window", panel="recall", model=WINDOW)
    if len(windows) < 3:
        raise Missing(f"fewer than three windows of {WINDOW}")
    found = {w: results.select(panel="recall", model=WINDOW, window=w)[0]["state_bytes"] for w in windows}
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


def made_up(point: Any) -> dict[str, float]:
    """Values of the paper's figure."""
    window = point["window"] or 1
    if point["panel"] == "time":
        return {SECONDS: 1 + (window / 4096) ** 2}
    alone = 0.2 + 0.07 * math.log2(window)
    score = {LINEAR: 0.3, WINDOW: alone, BASED: max(0.3, alone) + 0.1}[point["model"]]
    return {"valid/accuracy": score, "state_bytes": 512 * window}


def _learned(*models: str) -> Any:
    return tuple(learned(panel="recall", model=model) for model in models)


def _proportional(point: Any) -> dict[str, float]:
    return {SECONDS: float(point["window"])}


CLAIMS = (
    Claim(
        name="linear-struggles",
        text="Linear attention alone reaches half of what it reaches with a window, at most.",
        quote="We find that linear attention alone struggles to solve associative recall",
        source="Based, Sec. 1",
        rule="Half stands for struggling; both must have learned something.",
        controls=_learned(LINEAR, BASED),
        holds=_linear_struggles,
        broken_by=(Change({"panel": "recall", "model": LINEAR}, 0.7),),
    ),
    Claim(
        name="window-limits",
        text="A larger window recalls more (in four of five pairs), and the smallest at most half of the largest.",
        quote="In sliding window attention, associative recall range is limited by the width of the windows",
        source="Based, Sec. 1",
        rule="Four of five pairs leave room for noise, and chance fails them (p = 0.05).",
        controls=_learned(WINDOW),
        holds=_window_limits_recall,
        broken_by=(Change({"panel": "recall", "model": WINDOW}, 0.6),),
    ),
    Claim(
        name="state-linear",
        text="The state grows by as many bytes for each token of the window (1 %).",
        quote="As we increase the window size, the recurrent state grows linearly",
        source="Based, Sec. 1",
        rule="Measured bytes, which have no noise.",
        controls=(),
        holds=_state_is_linear,
        broken_by=(Change(lambda at: at["panel"] == "recall" and (at["window"] or 0) > 16, {"state_bytes": 1}),),
    ),
    Claim(
        name="time-not-linear",
        text="Somewhere the time is 10 % off the line between the smallest and the largest window.",
        quote="and has a non-linear affect on speed during parallel training and inference",
        source="Based, Sec. 1",
        rule="10 % is more than the fastest of 40 calls varies by.",
        controls=(),
        holds=_time_is_not_linear,
        broken_by=(Change({"panel": "time"}, _proportional),),
    ),
    Claim(
        name="small-windows-alike",
        text="A window of 64 takes 1.2 times as long as one of 16 at most. (The paper says so of products of matrices "
        "of these sizes on tensor cores.)",
        quote="tiny sliding window softmax attention (e.g., 64 or 128 tokens in width) enables improved recall "
        "accuracy with limited efficiency overhead vs. smaller tile sizes",
        source="Based, caption of Figure 1",
        rule="1.2 stands for limited; four times the work would be 4.",
        controls=(),
        holds=_small_windows_cost_alike,
        broken_by=(Change({"panel": "time"}, _proportional),),
    ),
    Claim(
        name="complement",
        text="Together they recall no less than the better one alone with any window, and more with some.",
        quote="We find that SWA and linear attention complement each other",
        source="Based, Sec. 1",
        rule="0.01 of accuracy counts as equal.",
        controls=_learned(*MODELS),
        holds=_complement,
        broken_by=(Change({"panel": "recall", "model": BASED}, 0.25),),
    ),
)
