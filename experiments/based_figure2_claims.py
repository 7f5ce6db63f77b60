"""Claims of Based about its Figure 2 (Sec. 1, 3.1 and 4.2), as predicates on results.

"Frontier", "state" and "perfect" are those of `experiments/frontier.py`. Where the paper says "much", "well" or
"almost always", the text of a claim gives the number that stands for it here.
"""

import itertools
import statistics
from collections.abc import Callable

import numpy as np

from experiments.frontier import PERFECT, SAME, by_state, frontier, leads, more_recalls_more
from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import from_json
from jaxzoo.sweep import Claim, Finding, Missing, Results

PRIOR = ("Attention", "Sliding window", "Mamba", "H3", "Hyena")
CLASSES = (*PRIOR, "Based")
WELL_BELOW = 0.1
"""Accuracy."""
ALIKE = 1.25
"""Ratio of two states of about one size."""


def _attention_is_perfect(results: Results) -> Finding:
    score = results.score(model="Attention")
    return Finding(score >= PERFECT, f"attention {score:.3f}")


def _attention_grows(results: Results) -> Finding:
    from jaxzoo.models.accounting import state_bytes

    config = from_json(results.best(model="Attention")["config"], ExperimentConfig).model
    length = config.max_length
    half, whole = state_bytes(config, length // 2), state_bytes(config, length)
    numbers = f"{half:,} bytes at {length // 2} tokens, {whole:,} at {length}"
    return Finding(1.9 * half <= whole <= 2.1 * half, numbers)


def _admits_small_states(model: str) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        smallest, cache = (min(by_state(results, model=name)) for name in (model, "Attention"))
        return Finding(4 * smallest <= cache, f"{model} from {smallest:,} bytes on, attention from {cache:,}")

    return holds


def _recalls_less_than_attention(model: str) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        cache = min(by_state(results, model="Attention"))
        smaller = [score for size, score in by_state(results, model=model).items() if size < cache]
        if not smaller:
            raise Missing(f"no {model} with a smaller state than attention")
        best, attention = max(smaller), results.score(model="Attention")
        return Finding(best < attention - SAME, f"{model} {best:.3f} at most, attention {attention:.3f}")

    return holds


def _classes_differ(results: Results) -> Finding:
    found: list[tuple[float, str]] = []
    for a, b in itertools.permutations(CLASSES, 2):
        for (a_size, a_score), (b_size, b_score) in itertools.product(*(_sizes(results, name) for name in (a, b))):
            if a_size <= b_size <= ALIKE * a_size:
                words = f"{a} {a_score:.3f} with {a_size:,} bytes, {b} {b_score:.3f} with {b_size:,}"
                found.append((abs(a_score - b_score), words))
    if not found:
        raise Missing("no two classes with states of about one size")
    gap, words = max(found)
    return Finding(gap >= WELL_BELOW, words)


def _sizes(results: Results, model: str) -> list[tuple[int, float]]:
    """States and accuracies of a class; none where it has no run."""
    return list(by_state(results, model=model).items()) if results.select(model=model) else []


def _mamba_is_best_of_prior(results: Results) -> Finding:
    cache = min(by_state(results, model="Attention"))
    worst: dict[str, float] = {}
    larger: list[str] = []
    for name in ("Sliding window", "H3", "Hyena"):
        budgets = [size for size in _budgets(results, ("Mamba", name)) if size < cache]
        try:
            worst[name] = min(leads(results, budgets, {"model": "Mamba"}, {"model": name}).values())
        except Missing:
            larger.append(f"; {name} has no state as small")
    if not worst:
        raise Missing("no model of prior work has states as small as Mamba's")
    numbers = ", ".join(f"{lead:+.3f} over {name} at least" for name, lead in worst.items())
    return Finding(min(worst.values()) > -SAME, f"Mamba's lead: {numbers}{''.join(larger)}")


def _is_well_below_the_frontier(model: str) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        others = tuple(name for name in CLASSES if name != model)
        gaps: list[float] = []
        for size, score in by_state(results, model=model).items():
            best = frontier(results, size, model=others)
            if best is not None:
                gaps.append(best - score)
        if not gaps:
            raise Missing(f"no other class has states as small as those of {model}")
        mean = statistics.mean(gaps)
        numbers = f"{model} is {min(gaps):.3f} to {max(gaps):.3f} below, {mean:.3f} in the mean"
        return Finding(min(gaps) > 0 and mean >= WELL_BELOW, numbers)

    return holds


def _expands(ours: str, theirs: tuple[str, ...]) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        found = leads(results, _budgets(results, (ours, *theirs)), {"model": ours}, {"model": theirs})
        best = max(found, key=found.__getitem__)
        numbers = f"{ours} leads by {found[best]:.3f} with {best:,} bytes"
        return Finding(found[best] >= SAME, f"{numbers}; over all sizes from {min(found.values()):+.3f} on")

    return holds


def _is_nowhere_behind(ours: str, theirs: str) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        found = leads(results, _budgets(results, (ours, theirs)), {"model": ours}, {"model": theirs})
        worst = min(found, key=found.__getitem__)
        ahead = max(found.values())
        numbers = f"{ours}'s lead over {theirs}: from {found[worst]:+.3f} (with {worst:,} bytes) to {ahead:+.3f}"
        return Finding(found[worst] > -SAME and ahead >= SAME, numbers)

    return holds


def _based_is_smooth(results: Results) -> Finding:
    scores = list(itertools.accumulate(by_state(results, model="Based").values(), max))
    if len(scores) < 3:
        raise Missing("fewer than three states of Based")
    jump, rise = max(b - a for a, b in itertools.pairwise(scores)), scores[-1] - scores[0]
    numbers = f"from {scores[0]:.3f} to {scores[-1]:.3f} in {len(scores)} sizes, by {jump:.3f} at most at once"
    return Finding(rise >= WELL_BELOW and jump <= rise / 2, numbers)


def _windows(results: Results) -> dict[int, float]:
    windows = results.values("window", model="Sliding window")
    if len(windows) < 3:
        raise Missing("fewer than three windows")
    return {window: results.score(model="Sliding window", window=window) for window in windows}


def _smaller_windows_recall_less(results: Results) -> Finding:
    scores = list(_windows(results).values())
    falls = all(small < large or small >= PERFECT for small, large in itertools.pairwise(scores))
    return Finding(falls, _listed(results))


def _linear_in_the_window(results: Results) -> Finding:
    found = _windows(results)
    left = [window for window, score in found.items() if score < PERFECT]
    if len(left) < 3:
        raise Missing("fewer than three windows without perfect recall")
    correlation = float(np.corrcoef(left, [found[window] for window in left])[0, 1])
    return Finding(correlation >= 0.95, f"correlation {correlation:.3f}; {_listed(results)}")


def _listed(results: Results) -> str:
    return ", ".join(f"window {window}: {score:.3f}" for window, score in _windows(results).items())


def _budgets(results: Results, models: tuple[str, ...]) -> list[int]:
    """Sizes of the states of some models: the places at which their frontiers can move."""
    return list(by_state(results, model=models))


def _claim(name: str, text: str, holds: Callable[[Results], Finding], source: str = "Based, Sec. 3.1") -> Claim:
    return Claim(name=name, text=text, source=source, holds=holds)


CLAIMS = (
    _claim(
        "tradeoff",
        "Within a class, a larger state almost always recalls more (in four of five pairs).",
        lambda results: more_recalls_more({name: by_state(results, model=name) for name in CLASSES}),
    ),
    _claim("attention-perfect", "Attention recalls perfectly.", _attention_is_perfect),
    _claim("attention-grows", "Its state grows with the length, in proportion.", _attention_grows),
    _claim("mamba-small", "Mamba can have a much smaller state (a quarter).", _admits_small_states("Mamba")),
    _claim("h3-small", "So can H3.", _admits_small_states("H3")),
    _claim("mamba-limited", "Such Mambas recall less than attention.", _recalls_less_than_attention("Mamba")),
    _claim("h3-limited", "Such H3 models recall less than attention.", _recalls_less_than_attention("H3")),
    _claim(
        "classes-differ",
        "With about as many bytes of state (a ratio of 1.25), classes recall differently (by 0.1 somewhere).",
        _classes_differ,
    ),
    _claim(
        "mamba-best-prior",
        "Of prior work Mamba makes the best of few bytes (at every size below attention's).",
        _mamba_is_best_of_prior,
    ),
    _claim(
        "mamba-beyond-window",
        "Mamba moves the frontier beyond sliding windows: nowhere behind, somewhere ahead.",
        _is_nowhere_behind("Mamba", "Sliding window"),
        "Based, Sec. 1",
    ),
    _claim(
        "hyena-below", "Hyena lies well below the frontier (0.1 in the mean).", _is_well_below_the_frontier("Hyena")
    ),
    _claim("h3-below", "So does H3.", _is_well_below_the_frontier("H3")),
    _claim(
        "based-expands",
        "Based moves the frontier: with some bytes it is ahead of all others.",
        _expands("Based", PRIOR),
    ),
    _claim(
        "based-beyond-mamba",
        "Based moves it beyond Mamba: nowhere behind, somewhere ahead.",
        _is_nowhere_behind("Based", "Mamba"),
    ),
    _claim(
        "based-smooth",
        "By width and feature dimension Based goes smoothly from little to much recall: no step is over half of it.",
        _based_is_smooth,
    ),
    _claim("window-falls", "Smaller windows recall less.", _smaller_windows_recall_less, "Based, Sec. 4.2"),
    _claim(
        "window-linear",
        "The fall is linear in the window (correlation 0.95, short of perfect recall).",
        _linear_in_the_window,
        "Based, Sec. 4.2",
    ),
)
