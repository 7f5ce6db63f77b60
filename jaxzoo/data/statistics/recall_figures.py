"""Pictures of repeated n-grams: Figures 3, 4 and 5 of Zoology (App. D)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxzoo.data.statistics.recall_summary import TOGETHER, Json, PowerLaw
from pallas_kernels.figure import PALETTE, add_legend, panels, plain_log_ticks, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LAW: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "marker": ""}
"""Style of a fitted law."""


def draw_distances(summary: Mapping[str, Json]) -> "Figure":
    """Figure 3: share of repeats by the distance to the last occurrence, all n-grams of all subsets, and their laws."""
    figure, axes = panels(1, 1, size=(5.5, 4.2), title="Distance of repeated n-grams, and fitted power laws")
    for i, (n, numbers) in enumerate(summary[TOGETHER]["all"].items()):
        law = numbers["power_law"]
        _curve(axes[0, 0], numbers, i, label=f"n = {n}" + (f", alpha = {law['alpha']:.2f}" if law else ""))
    _label_distances(axes[0, 0])
    add_legend(figure)
    return figure


def draw_distances_by_source(summary: Mapping[str, Json]) -> "Figure":
    """Figure 5: the same of each subset, without n-grams that hold a stop word; a panel for each n."""
    sizes = list(summary[TOGETHER]["content"])
    width = 1 + 4.2 * len(sizes)
    title = "Distance of repeated n-grams without stop words, by source"
    figure, axes = panels(1, len(sizes), size=(width, 4.2), title=title, sharey=True)
    for panel, n in zip(axes[0], sizes, strict=True):
        for i, (name, subset) in enumerate(_sources(summary).items()):
            _curve(panel, subset["content"][n], i, label=name or "(no name)")
        panel.set_title(f"n = {n}", fontsize=9)
        _label_distances(panel)
    for panel in axes[0, 1:]:
        panel.set_ylabel("")
    add_legend(figure)
    return figure


def draw_repeats_by_source(summary: Mapping[str, Json]) -> "Figure":
    """Figure 4: repeated n-grams without stop words in a sequence of each subset: means, and quartiles as lines."""
    sources, sizes = _sources(summary), list(summary[TOGETHER]["content"])
    title = "Repeated n-grams without stop words in a sequence, by source"
    figure, axes = panels(1, 1, size=(max(5.5, 2 + 0.7 * len(sources)), 4.2), title=title)
    panel, width = axes[0, 0], 0.8 / len(sizes)
    for i, n in enumerate(sizes):
        places = np.arange(len(sources)) + width * (i - (len(sizes) - 1) / 2)
        numbers = [subset["content"][n]["per_sequence"] for subset in sources.values()]
        means, low, high = (np.array([each[key] for each in numbers]) for key in ("mean", "0.25", "0.75"))
        panel.bar(places, means, width, color=PALETTE[i % len(PALETTE)].color, label=f"n = {n}")
        panel.vlines(places, low, high, color="#333333", linewidth=1.2)
    panel.set_xticks(np.arange(len(sources)), [name or "(no name)" for name in sources], rotation=30, ha="right")
    panel.set_ylabel("repeats per sequence")
    panel.grid(axis="x", visible=False)
    add_legend(figure)
    return figure


def _sources(summary: Mapping[str, Json]) -> dict[str, Json]:
    return {name: subset for name, subset in summary.items() if name != TOGETHER}


def _curve(panel: "Axes", numbers: Json, series: int, *, label: str) -> None:
    """Draws the bins that are not empty, and the law."""
    first, last, share = (np.array(numbers["distances"][key]) for key in ("first", "last", "share"))
    middle, is_met = np.sqrt(first * last), share > 0
    if not is_met.any():
        return
    style = series_style(series)
    panel.plot(middle[is_met], share[is_met], **{**style, "linestyle": "", "markersize": 3.5}, label=label)
    if numbers["power_law"]:
        shares = PowerLaw(**numbers["power_law"]).shares(int(last[-1]))
        panel.plot(np.arange(1, last[-1] + 1), shares, **_LAW, color=style["color"])


def _label_distances(panel: "Axes") -> None:
    panel.set_xlabel("tokens since the n-gram was last")
    panel.set_ylabel("share of repeats at a distance")
    plain_log_ticks(panel, "x")
    panel.set_yscale("log")
