"""Based, Figure 1 (left and centre): what the width of a sliding window costs, and what it recalls.

`jaxzoo sweep --experiment experiments/based_figure1.py --scale laptop --out DIR`

Centre: recall of two layers of linear attention, of two layers of sliding windows, and of Based, a window followed by
linear attention. The paper prints neither the layers nor the task of this panel. Here linear attention has Taylor
features, windows have rotary positions, as in Based's models of text, and the task is Figure 2's. There is no short
convolution, which would give linear attention the local comparison that the paper says it lacks.

Left: in the paper, the time of one matrix product as large as a window, on tensor cores, batch 512. Here, the time of
our sliding window attention over sequences of one length, float32, on the machine that runs the sweep.
"""

from typing import Any

from experiments.based_figure1_claims import BASED, CLAIMS, LINEAR, MODELS, SECONDS, WINDOW, made_up
from experiments.based_models import (
    BASED_PAPER,
    LAPTOP_ABOUT,
    LAPTOP_DATA,
    PAPER_DATA,
    SMOKE,
    SMOKE_DATA,
    Sizes,
    points,
)
from experiments.protocol import LAPTOP, Protocol
from experiments.window_time import window_time
from jaxzoo.mixers import MixerConfig, SlidingWindowAttentionConfig, TaylorLinearAttentionConfig
from jaxzoo.sweep import Experiment, Measurement, Point, Results, Scale
from jaxzoo.sweep.curves import accuracy_label, curve, guessing
from jaxzoo.tasks.recall_data import RecallDataConfig
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.figure import PALETTE, TITLE_POINTS, Axes, Figure, add_legend, bound_style, panels, plain_log_ticks

WINDOWS = (8, 16, 32, 64, 128, 256, 512, 1024)

PAPER_SIZES: Sizes = {
    LINEAR: {"d_model": (128,), "feature_dim": (16,)},
    WINDOW: {"d_model": (128,), "window": WINDOWS},
    BASED: {"d_model": (128,), "feature_dim": (16,), "window": WINDOWS},
}
LAPTOP_WINDOWS = (2, 4, 8, 16, 32, 64)
LAPTOP_SIZES: Sizes = {
    LINEAR: {"d_model": (32,), "feature_dim": (8,)},
    WINDOW: {"d_model": (32,), "window": LAPTOP_WINDOWS},
    BASED: {"d_model": (32,), "feature_dim": (8,), "window": LAPTOP_WINDOWS},
}
SMOKE_SIZES: Sizes = {BASED: {"d_model": (16,), "feature_dim": (4,), "window": (4,)}}


def _points(sizes: Sizes, learning_rates: tuple[float, ...], windows: tuple[int, ...]) -> list[Point]:
    """Returns the runs of the center panel and the times of the left one."""
    runs: list[Point] = [{"panel": "recall", **at} for at in points(sizes, learning_rates)]
    absent = dict.fromkeys(runs[0])
    return runs + [{**absent, "panel": "time", "model": WINDOW, "window": window} for window in windows]


def _layers(at: dict[str, Any]) -> tuple[MixerConfig, MixerConfig]:
    linear = TaylorLinearAttentionConfig(feature_dim=at["feature_dim"] or 1)
    window = SlidingWindowAttentionConfig(window=at["window"] or 1)
    return {LINEAR: (linear, linear), WINDOW: (window, window), BASED: (window, linear)}[at["model"]]


def _config(
    point: Point, protocol: Protocol, data: RecallDataConfig, *, length: int, batch_size: int, repeats: int
) -> RunConfig | Measurement:
    """Returns a run, or the measurement of a window's time over sequences of `length`."""
    at: dict[str, Any] = dict(point)
    if at["panel"] == "time":
        sizes = {"length": length, "batch_size": batch_size, "head_dim": 64, "repeats": repeats}
        return Measurement(function=window_time, arguments={"window": at["window"], **sizes})
    return protocol.run(_layers(at), data, d_model=at["d_model"], learning_rate=at["learning_rate"])


def _smoke() -> Scale:
    return Scale(
        about="One model of width 16, a few steps: nothing can be learned; two windows, timed once.",
        points=_points(SMOKE_SIZES, SMOKE.learning_rates, (4, 64)),
        config=lambda point: _config(point, SMOKE, SMOKE_DATA, length=64, batch_size=1, repeats=1),
    )


def _laptop() -> Scale:
    return Scale(
        about=LAPTOP_ABOUT + " Times: one sequence of 4,096 tokens, one head of 64 channels, the fastest of 40 calls.",
        points=_points(LAPTOP_SIZES, LAPTOP.learning_rates, (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
        config=lambda point: _config(point, LAPTOP, LAPTOP_DATA, length=4096, batch_size=1, repeats=40),
        remarks={
            "small-windows-alike": "A CPU computes what it is given: the scores of a window of 64 are more.",
            "complement": "With windows of 2 to 16 it leads, by 0.18 to 0.51. With 32 and 64, as long as the longest "
            "examples of training or longer, 2,500 steps leave it at 0.17.",
        },
    )


def _paper() -> Scale:
    return Scale(
        about="Data and protocol of Figure 2 at this scale; width, feature dimension and windows are not printed, and "
        "are of that figure's range. Times: 8 sequences of 4,096 tokens, one head of 64 channels.",
        points=_points(PAPER_SIZES, BASED_PAPER.learning_rates, (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)),
        config=lambda point: _config(point, BASED_PAPER, PAPER_DATA, length=4096, batch_size=8, repeats=30),
    )


def _draw(results: Results) -> Figure:
    title = "Based, Figure 1: the width of a sliding window"
    figure, (axes,) = panels(1, 2, size=(9.2, 4.4), title=title)
    time, recall = axes
    windows = results.values("window", panel="time")
    marks = [{"panel": "time", "window": window} for window in windows]
    curve(time, results, x="window", points=marks, label=WINDOW, series=1, metric=SECONDS)
    time.set_title("time on this machine", fontsize=TITLE_POINTS)
    time.set(xlabel="window, tokens", ylabel="seconds, forward pass")
    plain_log_ticks(time, "x", windows)
    plain_log_ticks(time, "y")
    windows = results.values("window", panel="recall", model=(WINDOW, BASED))
    for series, model in enumerate(MODELS[1:], start=1):
        marks = [{"panel": "recall", "model": model, "window": window} for window in windows]
        curve(recall, results, x="window", points=marks, label=model, series=series)
    _draw_linear(recall, results, windows)
    guessing(recall, results.select(panel="recall"))
    recall.set_title("recall", fontsize=TITLE_POINTS)
    recall.set(xlabel="window, tokens", ylabel=accuracy_label(results), ylim=(-0.02, 1.02))
    plain_log_ticks(recall, "x", windows)
    add_legend(figure)
    return figure


def _draw_linear(panel: Axes, results: Results, windows: list[int]) -> None:
    """Draws linear attention alone, which has no window, as a mark at the largest window and a horizontal line."""
    where = {"panel": "recall", "model": LINEAR}
    if windows and results.select(**where):
        curve(panel, results, x=lambda row: windows[-1], points=[where], label=LINEAR, series=0)
        panel.axhline(results.score(**where), **{**bound_style(), "color": PALETTE[0].color})


experiment = Experiment(
    title="Based, Figure 1",
    about="What the width of a sliding window costs in time, and what it recalls alone and with linear attention.",
    scales={"smoke": _smoke, "laptop": _laptop, "paper": _paper},
    claims=CLAIMS,
    made_up=made_up,
    draw=_draw,
    missing=(
        "The time of matrix products on tensor cores (left): in its place stands that of sliding window attention, on "
        "the machine at hand.",
        "The schematic drawing (right).",
    ),
)
