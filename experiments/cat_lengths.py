"""Accuracy over the length in CAT's Figure 6: curves from rows, and claims about them."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.cat import CAT, CLOSE, LIN_CAT, PERFECT, TWO_HEADS
from jaxzoo.sweep import Finding, Missing, Results
from jaxzoo.sweep.results import SeedScore

LEARNED, ROTARY, NONE, YARN = "attention, learned", "attention, RoPE", "attention, NoPE", "attention, YaRN"
CURVES = (CAT, TWO_HEADS, LIN_CAT, LEARNED, ROTARY, YARN, NONE, "linear attention", "Based", "Mamba")
"""Names of all curves; YaRN is a second curve of the run with rotary positions."""
RIVALS = (LEARNED, ROTARY, NONE, "linear attention", "Based", "Mamba")
"""Trained models of two layers."""
ASKED = "asked"
"""Name of the validations at all lengths."""
SLOWED = "YaRN {}"
"""Name of the validation at one length with YaRN."""
TRAINED = "valid/accuracy/length="
"""Prefix of the metric at the trained length."""


def by_length(results: Results, curve: str, **where: Any) -> dict[int, tuple[str, SeedScore]]:
    """Returns, by length, the name of the metric and the seeds of the learning rate that is best at the trained length.
    Raises `Missing` if there is no finished run."""
    runs = Results(results.seeds(model=ROTARY if curve == YARN else curve, **where).rows)
    names = runs.best()["metrics"]
    found = _lengths(names, f"{ASKED}/{TRAINED}")
    if curve == YARN:
        for length in tuple(found):
            found |= _lengths(names, f"{SLOWED.format(length)}/{TRAINED}")
    return {length: (metric, runs.seeds(metric)) for length, metric in sorted(found.items())}


def trained_length(results: Results) -> int:
    """Returns the length of training examples. Raises `Missing` if there is no finished run."""
    (length,) = _lengths(results.best()["metrics"], TRAINED)
    return length


def _lengths(metrics: Iterable[str], beginning: str) -> dict[int, str]:
    return {int(name.removeprefix(beginning)): name for name in metrics if name.startswith(beginning)}


def keeps(results: Results, models: Sequence[str], task: str) -> Finding:
    """Tests whether one of the models recalls everything at all lengths and widths."""
    worst = {name: found for name in models if (found := _worst(results, name, task))}
    if not worst:
        raise Missing(f"no finished run of {models[0]} on {task}")
    numbers = "; ".join(f"{name} {score:.2f} at least ({place})" for name, (score, place) in worst.items())
    return Finding(any(score >= PERFECT for score, _ in worst.values()), numbers)


def _worst(results: Results, name: str, task: str) -> tuple[float, str] | None:
    """Returns the smallest accuracy of a curve and its coordinates; None if it has no run."""
    scores = [
        (score, f"d = {width}, N = {length}")
        for width in results.values("d_model", task=task)
        for length, score in _curve(results, name, task=task, d_model=width).items()
    ]
    return min(scores, default=None)


def falls(results: Results, task: str) -> Finding:
    """Tests whether all curves but CAT's lose more than half of their accuracy from the trained to the longest
    length."""
    length, lost = trained_length(results), {}
    for name in CURVES[3:]:
        for width in results.values("d_model", task=task):
            curve = _curve(results, name, task=task, d_model=width)
            if length in curve and max(curve) > length:
                lost[f"{name}, d = {width}"] = curve[length], curve[max(curve)]
    if not lost:
        raise Missing(f"no finished run of two layers that was asked beyond N = {length} on {task}")
    holds = all(end < start / 2 for start, end in lost.values())
    return Finding(holds, "; ".join(f"{name}: {start:.2f} to {end:.2f}" for name, (start, end) in lost.items()))


def alone(results: Results, task: str) -> Finding:
    """Tests whether CAT recalls everything at all lengths and widths, and no model of two layers does."""
    own = keeps(results, (CAT, TWO_HEADS), task)
    others = {name: found for name in CURVES[3:] if (found := _worst(results, name, task))}
    if not others:
        raise Missing(f"no finished run of two layers on {task}")
    best = max(others, key=lambda name: others[name][0])
    score, place = others[best]
    numbers = f"{own.numbers}; of two layers the best is {best} with {score:.2f} ({place})"
    return Finding(own.holds and score < PERFECT, numbers)


def needs_positions(results: Results, task: str) -> Finding:
    """Tests whether attention without positions is worse than with some at the trained length, at every width."""
    length, pairs = trained_length(results), {}
    for width in results.values("d_model", task=task, model=NONE):
        where = {"task": task, "d_model": width}
        placed = [curve[length] for name in (LEARNED, ROTARY) if (curve := _curve(results, name, **where))]
        own = _curve(results, NONE, **where)
        if placed and own:
            pairs[width] = own[length], max(placed)
    if not pairs:
        raise Missing(f"no finished runs of attention with and without positions on {task}")
    numbers = "; ".join(f"d = {width}: {own:.2f} against {with_:.2f}" for width, (own, with_) in pairs.items())
    return Finding(all(own < with_ - CLOSE for own, with_ in pairs.values()), f"at N = {length}, {numbers}")


def _curve(results: Results, name: str, **where: Any) -> dict[int, float]:
    """Returns the accuracies of a curve by length, means over the seeds; empty if it has no run."""
    try:
        return {length: score.mean for length, (_, score) in by_length(results, name, **where).items()}
    except Missing:
        return {}
