"""Based, Figure 3: feature maps of linear attention, by the bytes of their state and by the parameters of the model.

`python -m jaxzoo.sweep --experiment experiments/based_figure3.py --scale laptop --out DIR`

Accuracy is that on the examples with the most pairs, 256 in the paper. Taylor has queries and keys of `feature_dim`
channels; all other maps have as many as the model, and so more parameters for more state.
"""

import itertools
import math
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from experiments.based_models import FEATURE_MAPS, Sizes, scales
from experiments.frontier import by_state, finish_by_state, leads, more_recalls_more, size_curve
from jaxzoo.sweep import Claim, Experiment, Finding, Missing, Results
from pallas_kernels.figure import add_legend, panels, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAPS = tuple(FEATURE_MAPS)
AT_THE_FRONTIER = 0.05
"""Accuracy that a map at the frontier lacks of it, in the mean over its sizes."""
HIGH = 0.9
"""High recall, as a share of the best that any map reaches."""
RECALLS = 0.1
"""Accuracy of the best run below which there is nothing to compare."""


def _sizes(widths: tuple[int, ...], feature_dims: tuple[int, ...]) -> Sizes:
    return {name: {"d_model": widths, **({"feature_dim": feature_dims} if name == "Taylor" else {})} for name in MAPS}


PAPER_SIZES = _sizes((64, 128, 192, 256, 320, 384, 448, 512), (16, 24))
"""The released configurations; the released picture leaves `feature_dim` 16 out."""
LAPTOP_SIZES = _sizes((16, 32, 64), (8, 16))
SMOKE_SIZES: Sizes = {"Taylor": {"d_model": (16,), "feature_dim": (4,)}, "CosFormer": {"d_model": (16,)}}
SIZES = {"smoke": SMOKE_SIZES, "laptop": LAPTOP_SIZES, "paper": PAPER_SIZES, "release": PAPER_SIZES}
ABOUT = {
    "paper": "As Figure 2 at this scale; widths and feature dimensions of the released configurations, since the "
    "paper prints none.",
    "release": "The released configurations (HazyResearch/zoology, `arxiv24_based_figure3`), data as of Figure 2. "
    "Without AllPoly, which the paper does not show.",
}
REMARKS = {
    "relu-frontier": "PosELU, with as many bytes, recalls more at each of its widths: by 0.11, 0.17 and 0.03.",
}


def _hardest(results: Results) -> str:
    """The metric of the examples with the most pairs.

    Raises:
      Missing: no run has one.
    """
    prefix = "valid/accuracy/pairs="
    found = {
        int(name.removeprefix(prefix)) for row in results.rows for name in row["metrics"] if name.startswith(prefix)
    }
    if not found:
        raise Missing("no accuracy by the number of pairs")
    return f"{prefix}{max(found)}"


def _comparable(results: Results) -> str:
    """The metric of `_hardest`.

    Raises:
      Missing: there is one map only, or none of them recalls anything.
    """
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
        sizes = by_state(results, metric=metric, model=name)
        gaps = [-lead for lead in leads(results, sizes, {"model": name}, {"model": MAPS}, metric=metric).values()]
        mean = statistics.mean(gaps)
        return Finding(mean <= AT_THE_FRONTIER, f"{name} lacks {mean:.3f} in the mean, {max(gaps):.3f} at most")

    return holds


def _state_without_parameters(results: Results) -> Finding:
    found: list[tuple[float, float, str]] = []
    for width in results.values("d_model", model="Taylor"):
        dims = results.values("feature_dim", model="Taylor", d_model=width)
        rows = [results.best(model="Taylor", d_model=width, feature_dim=dim) for dim in dims]
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


def _fewest_parameters(results: Results) -> Finding:
    metric = _comparable(results)
    enough = HIGH * results.score(metric)
    needed = {
        name: min(
            (row["n_parameters"] for row in results.select(model=name) if row["metrics"].get(metric, 0.0) >= enough),
            default=math.inf,
        )
        for name in results.values("model")
    }
    if "Taylor" not in needed:
        raise Missing("no finished run of Taylor")
    words = ", ".join(f"{name} {'never' if math.isinf(n) else f'{n:,}'}" for name, n in needed.items())
    holds = all(needed["Taylor"] < n for name, n in needed.items() if name != "Taylor")
    return Finding(holds, f"parameters for {enough:.3f}: {words}")


def _claim(name: str, text: str, holds: Callable[[Results], Finding]) -> Claim:
    return Claim(name=name, text=text, source="Based, Sec. 4.1", holds=holds)


CLAIMS = (
    *(
        _claim(
            f"{name.lower()}-frontier",
            f"{name} sits at the frontier of recall and state (within {AT_THE_FRONTIER} in the mean).",
            _at_the_frontier(name),
        )
        for name in ("Taylor", "PosELU", "ReLU")
    ),
    _claim(
        "taylor-state",
        "Taylor can expand its state (by half at least) without more parameters (5 % at most).",
        _state_without_parameters,
    ),
    _claim("taylor-recall", "That improves recall (at four of five widths).", _more_features_recall_more),
    _claim(
        "taylor-parameters",
        "Taylor needs fewer parameters than all others for high recall (nine tenths of the best).",
        _fewest_parameters,
    ),
)


def _draw(results: Results) -> "Figure":
    try:
        metric = _hardest(results)
    except Missing:
        metric = "none"
    pairs = metric.rpartition("=")[2]
    title = f"Based, Figure 3: feature maps of linear attention, {pairs} pairs"
    figure, axes = panels(2, 1, size=(6.4, 7.6), title=title, sharey=True)
    for series, name in enumerate(MAPS):
        size_curve(axes[0, 0], results, label=name, series=series, metric=metric, model=name)
        size_curve(axes[1, 0], results, label=name, series=series, metric=metric, size="n_parameters", model=name)
    finish_by_state(axes[0, 0])
    axes[1, 0].set(xlabel="parameters", ylabel="accuracy, best run")
    plain_log_ticks(axes[1, 0], "x")
    add_legend(figure)
    return figure


experiment = Experiment(
    title="Based, Figure 3",
    about="How much Based recalls with seven feature maps, by the bytes of its state and by its parameters.",
    scales=scales(SIZES, ABOUT, remarks=REMARKS),
    claims=CLAIMS,
    draw=_draw,
)
