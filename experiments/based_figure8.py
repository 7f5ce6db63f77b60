"""Based, Figure 8: recall against the bytes of the state, for more ways to make attention cheap.

`jaxzoo sweep --experiment experiments/based_figure8.py --scale laptop --out DIR`

The setup is as in Figure 2 (App. D.1). The paper counts states by formulas; here they are measured, and two of the
five models differ. NystromFormer is not causal, nor is its released form: it has no state, and is drawn over its
landmarks. BigBird's random blocks may be anywhere in the past: its state is the whole cache, independent of the
blocks, while the released code counts seven blocks.
"""

import math
from typing import Any

from experiments.based_models import Sizes, scales
from experiments.frontier import by_state, explain_marks, finish_by_state, more_recalls_more, size_curve
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Point, Results, learned
from jaxzoo.sweep.curves import curve, guessing
from jaxzoo.utils.figure import TITLE_POINTS, Figure, add_legend, panels, plain_log_ticks

SOURCE = "Based, App. D.1, Figure 8"
STREAMING = ("Based", "Sliding window", "ScatterBrain", "BigBird")
NYSTROM = "NystromFormer"

PAPER_SIZES: Sizes = {
    "Based": {"d_model": (48, 64, 128), "feature_dim": (8, 16, 24)},
    "Sliding window": {"d_model": (128,), "window": (8, 16, 32, 64, 128, 256, 512, 1024)},
    "ScatterBrain": {"d_model": (64, 128, 256), "window": (4, 16, 64, 256, 1024), "n_features": (32, 64, 128)},
    "BigBird": {"d_model": (64,), "block_size": (4, 8, 16, 32, 64, 128)},
    NYSTROM: {"d_model": (128,), "n_landmarks": (16, 32, 64, 128, 256, 512)},
}
"""The released configurations, without those of ScatterBrain with more features than channels."""
LAPTOP_SIZES: Sizes = {
    "Based": {"d_model": (32,), "feature_dim": (4, 8, 16)},
    "Sliding window": {"d_model": (32,), "window": (4, 8, 16, 32, 64, 128)},
    "ScatterBrain": {"d_model": (32,), "window": (4, 16, 64), "n_features": (16, 32)},
    "BigBird": {"d_model": (32,), "block_size": (2, 4, 8)},
    NYSTROM: {"d_model": (32,), "n_landmarks": (8, 16, 32, 64)},
}
SMOKE_SIZES: Sizes = {
    "ScatterBrain": {"d_model": (16,), "window": (4,), "n_features": (8,)},
    NYSTROM: {"d_model": (16,), "n_landmarks": (8,)},
}


def _fits(point: Point) -> bool:
    return _number(point, "n_features") <= _number(point, "d_model")


def _number(point: Point, axis: str) -> float:
    return float(point.get(axis) or 0)


SIZES = {"smoke": SMOKE_SIZES, "laptop": LAPTOP_SIZES, "paper": PAPER_SIZES, "release": PAPER_SIZES}
ABOUT = {
    "paper": "As Figure 2 at this scale; models of the released configurations, since the paper prints none.",
    "release": "The released configurations (HazyResearch/zoology, `arxiv24_based_appendix`), data as of Figure 2. "
    "Without MRA, which the paper does not show.",
}
QUOTE = (
    "The plot shows a fundamental tradeoff between the recurrent state size and recall capacity that applies to broad "
    "class of models."
)
RULE = "Four of five pairs leave room for noise, and chance fails them (permutation test, p = 0.05)."


def _more_state(model: str) -> Claim:
    return Claim(
        name=f"tradeoff-{model.lower().replace(' ', '-')}",
        text=f"{model}: a larger state recalls more (in four of five pairs).",
        quote=QUOTE,
        source=SOURCE,
        rule=RULE,
        controls=(learned(model=model),),
        holds=lambda results: more_recalls_more({model: by_state(results, model=model)}),
        broken_by=(Change({"model": model}, 0.5),),
    )


def _more(model: str, axis: str, words: str) -> Claim:
    def holds(results: Results) -> Finding:
        values = results.values(axis, model=model)
        return more_recalls_more({model: {value: results.score(model=model, **{axis: value}) for value in values}})

    text = f"{model}: more {words}, of which the released code makes its state, recall more (in four of five pairs)."
    return Claim(
        name=f"tradeoff-{axis}",
        text=text,
        quote=QUOTE,
        source=SOURCE,
        rule=RULE,
        controls=(learned(model=model),),
        holds=holds,
        broken_by=(Change({"model": model}, 0.5),),
    )


def _made_up(point: Any) -> dict[str, Any]:
    """Values of the paper's figure: larger sizes recall more; BigBird keeps the whole cache."""
    name, d = point["model"], point["d_model"]
    if name == "BigBird":
        return {"valid/accuracy": 0.2 + 0.08 * math.log2(point["block_size"]), "state_bytes": 10_000}
    if name == NYSTROM:
        return {"valid/accuracy": 0.1 + 0.08 * math.log2(point["n_landmarks"]), "state_bytes": None}
    state = (
        16 * d * point["feature_dim"] if name == "Based" else 8 * d * point["window"] + d * (point["n_features"] or 0)
    )
    return {"valid/accuracy": min(0.98, 0.1 + 0.04 * math.log2(state)), "state_bytes": state}


def _draw(results: Results) -> Figure:
    title = "Based, Figure 8: recall by the size of the state"
    figure, (axes,) = panels(1, 2, size=(8.6, 4.6), title=title, sharey=True, width_ratios=(2, 1))
    for series, model in enumerate(STREAMING):
        size_curve(axes[0], results, label=model, series=series, model=model)
    explain_marks(axes[0], results)
    finish_by_state(axes[0], results)
    landmarks = results.values("n_landmarks", model=NYSTROM)
    marks = [{"model": NYSTROM, "n_landmarks": n} for n in landmarks]
    curve(axes[1], results, x="n_landmarks", points=marks, label=NYSTROM, series=len(STREAMING))
    for panel in axes:
        guessing(panel, results.rows)
    axes[1].set_title("no state: sees the future", fontsize=TITLE_POINTS)
    axes[1].set(xlabel="landmarks")
    plain_log_ticks(axes[1], "x", landmarks)
    add_legend(figure)
    return figure


experiment = Experiment(
    title="Based, Figure 8",
    about="How much sparse, windowed and low-rank attention recall with how many bytes of state, beside Based.",
    scales=scales(SIZES, ABOUT, keep=_fits),
    claims=(
        *(_more_state(model) for model in STREAMING if model != "BigBird"),  # of one state, whatever the blocks
        _more("BigBird", "block_size", "tokens a block"),
        _more(NYSTROM, "n_landmarks", "landmarks"),
    ),
    made_up=_made_up,
    draw=_draw,
    missing=(
        "BigBird's and NystromFormer's places on the axis of bytes, which the released code counts by formulas: 14 b d "
        "for blocks of b tokens, 2 d landmarks. What they keep is the whole cache, and no state at all.",
    ),
)
