"""Claims of Based about its Figure 2 (Sec. 1, 3.1 and 4.2), as predicates on results.

`experiments/frontier.py` defines "frontier", "state" and "perfect". Where the paper says "much", "well" or
"almost always", the text of a claim gives our number for it.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.based_models import LAPTOP, LAPTOP_DATA, run
from experiments.frontier import PERFECT, SAME, by_state, frontier, leads, more_recalls_more
from jaxzoo.config.config_io import from_json, to_json
from jaxzoo.sweep import Change, Claim, Finding, Missing, Results, learned
from jaxzoo.sweep.claims import CHANCE, chance
from jaxzoo.train.config import RunConfig

PRIOR = ("Attention", "Sliding window", "Mamba", "H3", "Hyena")
CLASSES = (*PRIOR, "Based")
WELL_BELOW = 0.1
"""Accuracy."""
ALIKE = 1.25
"""Largest ratio of two states that count as equally large."""


def _attention_is_perfect(results: Results) -> Finding:
    score = results.score(model="Attention")
    return Finding(score >= PERFECT, f"attention {score:.3f}")


def _attention_grows(results: Results) -> Finding:
    from jaxzoo.models.accounting import state_bytes

    rows = results.select(model="Attention")
    if not rows:
        raise Missing("no run of attention")
    config = from_json(rows[0]["config"], RunConfig).model
    length = config.max_length
    half, whole = state_bytes(config, length // 2), state_bytes(config, length)
    numbers = f"{half:,} bytes at {length // 2} tokens, {whole:,} at {length}"
    return Finding(1.9 * half <= whole <= 2.1 * half, numbers)


def _admits_small_states(model: str) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        results.require(model="Attention")
        smallest, cache = (_smallest_state(results, name) for name in (model, "Attention"))
        return Finding(4 * smallest <= cache, f"{model} from {smallest:,} bytes on, attention from {cache:,}")

    return holds


def _smallest_state(results: Results, model: str) -> int:
    sizes = [row["state_bytes"] for row in results.select(model=model) if row["state_bytes"] is not None]
    if not sizes:
        raise Missing(f"no run of {model} with a state")
    return min(sizes)


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
    """Returns accuracies of a class by state; empty if it has no run."""
    return list(by_state(results, model=model).items()) if results.select(model=model) else []


def _mamba_is_best_of_prior(results: Results) -> Finding:
    cache = min(by_state(results, model="Attention"))
    worst: dict[str, float] = {}
    larger: list[str] = []
    for name in ("Sliding window", "H3", "Hyena"):
        results.require(model=name)
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


def _is_nowhere_worse(ours: str, theirs: str) -> Callable[[Results], Finding]:
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
    scores = [found[window] for window in left]
    correlation = float(np.corrcoef(left, scores)[0, 1])
    p = chance(correlation, [scores], lambda orders: float(np.corrcoef(left, orders[0])[0, 1]))
    numbers = f"correlation {correlation:.3f}, by chance with p = {p:.2g}; {_listed(results)}"
    return Finding(correlation >= 0.95 and p <= CHANCE, numbers)


def _listed(results: Results) -> str:
    return ", ".join(f"window {window}: {score:.3f}" for window, score in _windows(results).items())


def _budgets(results: Results, models: tuple[str, ...]) -> list[int]:
    """Returns the state sizes of some models, at which their frontiers can change."""
    return list(by_state(results, model=models))


def _made_up_state(at: dict[str, Any]) -> int:
    """Returns bytes that order the models as in the paper."""
    d = at["d_model"]
    return {
        "Attention": lambda: 4096 * d,
        "Sliding window": lambda: 8 * d * at["window"],
        "Mamba": lambda: 16 * d * at["d_state"],
        "H3": lambda: 4 * d * d,
        "Hyena": lambda: 1024 * d,
        "Based": lambda: 16 * d * at["feature_dim"],
    }[at["model"]]()


def made_up(point: Any) -> dict[str, Any]:
    """Values of the paper's figure: Based above Mamba above the others, each better with more bytes; attention is
    perfect."""
    name, d, state = point["model"], point["d_model"], _made_up_state(point)
    on_the_frontier = min(0.98, 0.3 + 0.08 * math.log2(state / 256))
    score = {
        "Attention": lambda: 0.995,
        "Sliding window": lambda: 0.02 + 0.9 * point["window"] / (1024 if d >= 128 else 128),
        "Mamba": lambda: on_the_frontier - 0.1,
        "H3": lambda: on_the_frontier - 0.3,
        "Hyena": lambda: 0.25 + 0.001 * d,
        "Based": lambda: on_the_frontier,
    }[name]()
    config = to_json(run(point, LAPTOP, LAPTOP_DATA)) if name == "Attention" else None
    return {"valid/accuracy": score, "state_bytes": state, "config": config}


def _windowed_config(at: Any) -> dict[str, Any]:
    """Returns a config whose state does not grow with the length."""
    return {"config": to_json(run({**at, "model": "Sliding window", "window": 4}, LAPTOP, LAPTOP_DATA))}


def _claim(
    name: str,
    text: str,
    holds: Callable[[Results], Finding],
    *,
    quote: str,
    rule: str,
    of: Sequence[str],
    broken_by: Change,
    source: str = "Based, Sec. 3.1",
) -> Claim:
    """Makes a claim on the accuracies of the models `of`, each of which must have learned; empty: a claim on bytes."""
    controls = tuple(learned(model=model) for model in of)
    return Claim(
        name=name,
        text=text,
        quote=quote,
        source=source,
        rule=rule,
        controls=controls,
        holds=holds,
        broken_by=(broken_by,),
    )


SMALLER = "Other architecture classes like Mamba and H3 admit models with much smaller recurrent states"
LIMITED = "but these models have limited recall capacity"
BELOW = "architectures with a convolutional view (e.g. Hyena and H3) fall well below the Pareto frontier"
EQUAL = (
    f"{SAME} of accuracy counts as equal; all sizes of both models are compared, up to the largest state of the first."
)
LINEAR = "Figure 2 indeed shows smaller w linearly decreasing in associative recall accuracy"

CLAIMS = (
    Claim(
        name="tradeoff",
        text="Within a class, a larger state recalls more in four of five pairs of sizes.",
        quote="Within each architecture class (e.g. H3 models), increasing the recurrent state size almost always "
        "leads to an improvement in accuracy.",
        source="Based, Sec. 3.1",
        rule="Four of five stands for almost always; chance fails it (permutation test, p = 0.05).",
        controls=(learned(model=CLASSES),),
        holds=lambda results: more_recalls_more(
            {name: by_state(results, model=name) for name in CLASSES if results.select(model=name)}
        ),
        broken_by=(Change({"model": CLASSES}, 0.5),),
    ),
    _claim(
        "attention-perfect",
        "Attention has an accuracy of 0.99.",
        _attention_is_perfect,
        quote="Attention achieves perfect recall accuracy",
        rule="Runs end at 0.99.",
        of=("Attention",),
        broken_by=Change({"model": "Attention"}, 0.9),
    ),
    _claim(
        "attention-grows",
        "The state of attention doubles with the length, within 5 %.",
        _attention_grows,
        quote="its recurrent state size grows with the length of the sequence",
        rule="Measured bytes; 5 % are the convolution's, which does not grow.",
        of=(),
        broken_by=Change({"model": "Attention"}, _windowed_config),
    ),
    _claim(
        "mamba-small",
        "The smallest Mamba has a quarter of the bytes of the smallest attention, at most.",
        _admits_small_states("Mamba"),
        quote=SMALLER,
        rule="A quarter stands for much smaller.",
        of=(),
        broken_by=Change({"model": "Mamba"}, {"state_bytes": 10**9}),
    ),
    _claim(
        "h3-small",
        "The smallest H3 has a quarter of the bytes of the smallest attention, at most.",
        _admits_small_states("H3"),
        quote=SMALLER,
        rule="A quarter stands for much smaller.",
        of=(),
        broken_by=Change({"model": "H3"}, {"state_bytes": 10**9}),
    ),
    _claim(
        "mamba-limited",
        "Mambas with a smaller state than attention recall less than attention.",
        _recalls_less_than_attention("Mamba"),
        quote=LIMITED,
        rule=f"More than {SAME}, which counts as equal.",
        of=("Attention", "Mamba"),
        broken_by=Change({"model": "Mamba"}, 0.995),
    ),
    _claim(
        "h3-limited",
        "H3 models with a smaller state than attention recall less than attention.",
        _recalls_less_than_attention("H3"),
        quote=LIMITED,
        rule=f"More than {SAME}, which counts as equal.",
        of=("Attention", "H3"),
        broken_by=Change({"model": "H3"}, 0.995),
    ),
    Claim(
        name="classes-differ",
        text="Somewhere two classes differ by 0.1 of accuracy with states within a ratio of 1.25.",
        quote="for a fixed recurrent state size, performance is not consistent across architectures",
        source="Based, Sec. 3",
        rule="States of two classes are never just equal, hence the ratio; 0.1 is more than seeds differ by.",
        controls=(learned(model=CLASSES),),
        holds=_classes_differ,
        broken_by=(Change({"model": CLASSES}, 0.5),),
    ),
    _claim(
        "mamba-best-prior",
        "Mamba is nowhere worse than sliding windows, H3 and Hyena at sizes below attention's.",
        _mamba_is_best_of_prior,
        quote="Among architectures proposed in prior work, Mamba makes the best use of a limited memory budget.",
        rule=EQUAL,
        of=("Mamba", "Sliding window", "H3"),
        broken_by=Change({"model": "Sliding window"}, 0.95),
    ),
    _claim(
        "mamba-beyond-window",
        "Mamba is nowhere worse than sliding windows, and somewhere better.",
        _is_nowhere_worse("Mamba", "Sliding window"),
        quote="Mamba, a recently proposed SSM architecture expands the Pareto frontier beyond SWA.",
        rule=EQUAL,
        of=("Mamba", "Sliding window"),
        broken_by=Change({"model": "Sliding window"}, 0.95),
        source="Based, Sec. 1",
    ),
    _claim(
        "hyena-below",
        "Hyena lies below the frontier of the others at each of its sizes, by 0.1 in the mean.",
        _is_well_below_the_frontier("Hyena"),
        quote=BELOW,
        rule="0.1 of accuracy stands for well below.",
        of=("Hyena",),
        broken_by=Change({"model": "Hyena"}, 0.99),
    ),
    _claim(
        "h3-below",
        "H3 lies below the frontier of the others at each of its sizes, by 0.1 in the mean.",
        _is_well_below_the_frontier("H3"),
        quote=BELOW,
        rule="0.1 of accuracy stands for well below.",
        of=("H3",),
        broken_by=Change({"model": "H3"}, 0.99),
    ),
    _claim(
        "based-expands",
        "With some bytes Based is ahead of all others.",
        _expands("Based", PRIOR),
        quote="SWA and linear attention complement each other, enabling BASED to expand the pareto frontier of the "
        "recall-memory tradeoff",
        rule=EQUAL,
        of=("Based", *PRIOR[:2]),
        broken_by=Change({"model": "Based"}, 0.15),
        source="Based, Sec. 1",
    ),
    _claim(
        "based-beyond-mamba",
        "Based is nowhere worse than Mamba, and somewhere better.",
        _is_nowhere_worse("Based", "Mamba"),
        quote="Our proposed architecture, BASED (introduced in Section 4), expands the Pareto-frontier beyond Mamba.",
        rule=EQUAL,
        of=("Based", "Mamba"),
        broken_by=Change({"model": "Based"}, 0.15),
    ),
    _claim(
        "based-smooth",
        "From the least to the most recall of Based no step between neighbouring sizes is over half of it.",
        _based_is_smooth,
        quote="By varying hyper-parameters that determine its state size (e.g. feature dimension and model dimension), "
        "we can smoothly navigate the tradeoff",
        rule="One step over half of the way would be a switch; the whole way must be 0.1 of accuracy at least.",
        of=("Based",),
        broken_by=Change({"model": "Based"}, lambda at: 0.9 if at["feature_dim"] >= 16 else 0.2),
    ),
    _claim(
        "window-falls",
        "Each smaller window recalls less.",
        _smaller_windows_recall_less,
        quote=LINEAR,
        rule="No tolerance; windows that recall perfectly are left out.",
        of=("Sliding window",),
        broken_by=Change({"model": "Sliding window"}, 0.5),
        source="Based, Sec. 4.2",
    ),
    _claim(
        "window-linear",
        "Accuracy and window correlate with 0.95 or more, short of perfect recall.",
        _linear_in_the_window,
        quote=LINEAR,
        rule="0.95 is reached by a line and not by a logarithm; chance fails it (permutation test, p = 0.05).",
        of=("Sliding window",),
        broken_by=Change({"model": "Sliding window"}, lambda at: 0.09 * math.log2(at["window"])),
        source="Based, Sec. 4.2",
    ),
)
