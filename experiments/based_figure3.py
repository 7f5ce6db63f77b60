"""Based, Figure 3: feature maps of linear attention, by the bytes of their state and by the parameters of the model.

`jaxzoo sweep --experiment experiments/based_figure3.py --scale laptop --out DIR`

Accuracy is on the examples with the most pairs, 256 in the paper. Taylor has queries and keys of `feature_dim`
channels; all other maps have as many channels as the model, so that a larger state needs more parameters.
"""

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

from experiments.based_models import FEATURE_MAPS, Sizes, scales
from experiments.frontier import by_state, explain_marks, finish_by_state, leads, more_recalls_more, size_curve
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Missing, Results, learned
from jaxzoo.sweep.curves import accuracy_label, guessing
from jaxzoo.sweep.results import SCORE
from jaxzoo.utils.figure import PALETTE, Figure, add_legend, panels, plain_log_ticks

MAPS = tuple(FEATURE_MAPS)
AT_THE_FRONTIER = 0.05
"""Largest mean difference in accuracy between the frontier and a map at the frontier."""
HIGH = 0.9
"""High recall, as a share of the best accuracy of any map."""
RECALLS = 0.1
"""Accuracy of the best run below which maps are not compared."""


def _sizes(widths: tuple[int, ...], feature_dims: tuple[int, ...]) -> Sizes:
    return {name: {"d_model": widths, **({"feature_dim": feature_dims} if name == "Taylor" else {})} for name in MAPS}


PAPER_SIZES = _sizes((64, 128, 192, 256, 320, 384, 448, 512), (16, 24))
"""The released configurations; the released picture omits `feature_dim` 16."""
LAPTOP_SIZES = _sizes((16, 32, 64), (8, 16))
SMOKE_SIZES: Sizes = {"Taylor": {"d_model": (16,), "feature_dim": (4,)}, "CosFormer": {"d_model": (16,)}}
SIZES = {
    "smoke": SMOKE_SIZES,
    "laptop": LAPTOP_SIZES,
    "overnight": LAPTOP_SIZES,
    "paper": PAPER_SIZES,
    "release": PAPER_SIZES,
}
ABOUT = {
    "paper": "As Figure 2 at this scale; widths and feature dimensions of the released configurations, since the "
    "paper prints none.",
    "release": "The released configurations (HazyResearch/zoology, `arxiv24_based_figure3`), data as of Figure 2. "
    "Without AllPoly, which the paper does not show.",
}


def _hardest(results: Results) -> str:
    """Returns the metric of the examples with the most pairs. Raises `Missing` if no run has one."""
    prefix = "valid/accuracy/pairs="
    found = {
        int(name.removeprefix(prefix)) for row in results.rows for name in row["metrics"] if name.startswith(prefix)
    }
    if not found:
        raise Missing("no accuracy by the number of pairs")
    return f"{prefix}{max(found)}"


def _comparable(results: Results) -> str:
    """Returns the metric of `_hardest`. Raises `Missing` if there is only one map, or none recalls anything."""
    metric = _hardest(results)
    if len(results.values("model")) < 2:
        raise Missing("one feature map only")
    best = results.score(metric)
    if best < RECALLS:
        raise Missing(f"no map recalls anything: {best:.3f} at most")
    return metric


def _at_the_frontier(name: str) -> Callable[[Results], Finding]:
    def holds(results: Results) -> Finding:
        metric = _comparable(results)
        sizes, others = by_state(results, metric=metric, model=MAPS), tuple(each for each in MAPS if each != name)
        found = leads(results, sizes, {"model": name}, {"model": others}, metric=metric)
        gaps = [max(0.0, -lead) for lead in found.values()]
        mean = statistics.mean(gaps)
        return Finding(mean <= AT_THE_FRONTIER, f"{name} lacks {mean:.3f} in the mean, {max(gaps):.3f} at most")

    return holds


def _state_without_parameters(results: Results) -> Finding:
    found: list[tuple[float, float, str]] = []
    for width in results.values("d_model", model="Taylor"):
        dims = results.values("feature_dim", model="Taylor", d_model=width)
        rows = [results.select(model="Taylor", d_model=width, feature_dim=dim)[0] for dim in dims]
        for (a, small), (b, large) in itertools.pairwise(zip(dims, rows, strict=True)):
            state = large["state_bytes"] / small["state_bytes"]
            parameters = large["n_parameters"] / small["n_parameters"]
            words = f"d {width}, d' {a} to {b}: state x {state:.2f}, parameters x {parameters:.3f}"
            found.append((state, parameters, words))
    if not found:
        raise Missing("no two feature dimensions at one width")
    holds = all(state >= 1.5 and parameters <= 1.05 for state, parameters, _ in found)
    return Finding(holds, "; ".join(words for *_, words in found))


def _more_features_recall_more(results: Results) -> Finding:
    metric = _hardest(results)
    scores: dict[str, dict[int, float]] = {}
    for width in results.values("d_model", model="Taylor"):
        dims = results.values("feature_dim", model="Taylor", d_model=width)
        scores[f"d {width}"] = {
            dim: results.score(metric, model="Taylor", d_model=width, feature_dim=dim) for dim in dims
        }
    return more_recalls_more(scores)


def _parameters_for(results: Results, model: str, metric: str, enough: float) -> float:
    """Returns the fewest parameters with which a map has an accuracy; infinite if no run has it."""
    found = [math.inf]
    for size in {row["n_parameters"] for row in results.select(model=model)}:
        same = Results([row for row in results.select(model=model) if row["n_parameters"] == size])
        with contextlib.suppress(Missing):
            found += [size] if same.score(metric) >= enough else []
    return min(found)


def _fewest_parameters(results: Results) -> Finding:
    metric = _comparable(results)
    results.require(model=MAPS)
    enough = HIGH * results.score(metric)
    needed = {name: _parameters_for(results, name, metric, enough) for name in results.values("model")}
    if "Taylor" not in needed:
        raise Missing("no finished run of Taylor")
    words = ", ".join(f"{name} {'never' if math.isinf(n) else f'{n:,}'}" for name, n in needed.items())
    holds = all(needed["Taylor"] < n for name, n in needed.items() if name != "Taylor")
    return Finding(holds, f"parameters for {enough:.3f}: {words}")


def _made_up(point: Any) -> dict[str, Any]:
    """Values of the paper's figure: three maps at the frontier, four below it; Taylor has fewer parameters per
    state."""
    name, d = point["model"], point["d_model"]
    state = 4 * d * d if name != "Taylor" else d * point["feature_dim"] ** 2
    score = min(0.98, 0.2 + 0.06 * math.log2(state / 64)) - (0 if name in AT else 0.1)
    parameters = 1000 * d + point["feature_dim"] if name == "Taylor" else 2000 * d
    found = {SCORE: score, "valid/accuracy/pairs=32": score}
    return {**found, "state_bytes": state, "n_parameters": parameters}


AT = ("Taylor", "PosELU", "ReLU")
FRONTIER = (
    "The Taylor series feature map, along with the simple PosELU and ReLU feature maps, sits at the Pareto frontier."
)
EXPANDS = "it expands the recurrent state size (improving recall capacity) without changing the number of parameters"
SOURCE = "Based, Sec. 4.1"
CLAIMS = (
    *(
        Claim(
            name=f"{name.lower()}-frontier",
            text=f"{name} lacks {AT_THE_FRONTIER} of the best accuracy, in the mean over the sizes of all maps up "
            f"to its "
            "largest.",
            quote=FRONTIER,
            source=SOURCE,
            rule="The frontier has the sizes of all maps, not those of one; 0.05 is more than seeds differ by.",
            controls=(learned(model=name), learned(model=MAPS)),
            holds=_at_the_frontier(name),
            broken_by=(Change({"model": name}, 0.15),),
        )
        for name in AT
    ),
    Claim(
        name="taylor-state",
        text="From each feature dimension to the next the state grows by half at least, the parameters by 5 % at most.",
        quote=EXPANDS,
        source=SOURCE,
        rule="Measured; the projections of queries and keys grow with the feature dimension, hence 5 %.",
        controls=(),
        holds=_state_without_parameters,
        broken_by=(Change({"model": "Taylor"}, {"state_bytes": 5}),),
    ),
    Claim(
        name="taylor-recall",
        text="At a width, the larger feature dimension recalls more, in four of five pairs.",
        quote=EXPANDS,
        source=SOURCE,
        rule="Four of five pairs leave room for noise, and chance fails them (permutation test, p = 0.05).",
        controls=(learned(model="Taylor"),),
        holds=_more_features_recall_more,
        broken_by=(Change({"model": "Taylor"}, 0.4),),
    ),
    Claim(
        name="taylor-parameters",
        text="Taylor needs fewer parameters than each other map for nine tenths of the best accuracy.",
        quote="the Taylor series feature map requires fewer parameters than alternatives to achieve high recall "
        "capacity",
        source=SOURCE,
        rule="Nine tenths of the best stand for high; a map that never has it needs more than was tried.",
        controls=(learned(model="Taylor"), learned(model=MAPS)),
        holds=_fewest_parameters,
        broken_by=(Change({"model": "Taylor"}, {"n_parameters": 10**9}),),
    ),
)


def _draw(results: Results) -> Figure:
    try:
        metric = _hardest(results)
    except Missing:
        metric = "none"
    pairs = metric.rpartition("=")[2]
    title = f"Based, Figure 3: feature maps, {pairs} pairs"
    figure, axes = panels(2, 1, size=(4.8, 7.0), title=title, sharey=True)
    for panel, size in ((axes[0, 0], "state_bytes"), (axes[1, 0], "n_parameters")):
        for series, name in enumerate(MAPS):
            for i, dim in enumerate(results.values("feature_dim", model=name)):  # dashed where one is not the first
                label, where = name if dim is None else f"{name}, d' = {dim}", {"model": name, "feature_dim": dim}
                style = series + i * len(PALETTE)
                size_curve(panel, results, label=label, series=style, metric=metric, size=size, **where)
        guessing(panel, results.rows, metric)
    explain_marks(axes[0, 0], results)
    finish_by_state(axes[0, 0], results)
    axes[1, 0].set(xlabel="parameters", ylabel=accuracy_label(results))
    plain_log_ticks(axes[1, 0], "x")
    add_legend(figure)
    return figure


experiment = Experiment(
    title="Based, Figure 3",
    about="How much Based recalls with seven feature maps, by the bytes of its state and by its parameters.",
    scales=scales(SIZES, ABOUT),
    claims=CLAIMS,
    made_up=_made_up,
    draw=_draw,
)
