"""Summary of the histograms of repeated n-grams as JSON, table and Figures 3 to 5, with power laws (Zoology App. D)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64, Integer

from jaxzoo.utils.figure import PALETTE, Axes, Figure, add_legend, panels, plain_log_ticks, series_style

KINDS = ("all", "content")
"""All n-grams, including those with end-of-text; and those without stop words, punctuation and end-of-text."""
NEAR = 100
"""Distance within which the paper finds most of the repeats."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOGETHER = "all subsets"
_LAW: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "marker": ""}
_BINS = 40
_STEEPEST = 50.0
"""Exponents are searched in [-50, 50]: beyond, all but one distance has a share below 1e-15."""

Json = dict[str, Any]


class Histograms(NamedTuple):
    """Histograms of one subset, kind and n; or of many, along leading axes."""

    distances: Int64[np.ndarray, "... length"]
    """Number of repeated n-grams by the distance to their last occurrence; 0 at distance 0."""
    sequences: Int64[np.ndarray, "... length+1"]
    """Number of sequences by their number of repeated n-grams."""


def summarise(histograms: Mapping[str, Histograms], n: Sequence[int]) -> Json:
    """Summarises each subset, and all together, of `count_repeats` for n-grams of the lengths `n`.

    Returns:
        `{subset: {"sequences", "tokens", kind: {n: numbers}}}`. The numbers of a kind and n: `repeats`; `share`, of all
        tokens; `per_sequence`, their mean and quantiles; `within_100`, the share of repeats whose last occurrence is
        at most 100 tokens earlier; `power_law`, None if nothing can be fitted; `distances`, the bins of the picture.
    """
    together = Histograms(*(np.sum(each, axis=0) for each in zip(*histograms.values(), strict=True)))
    result: Json = {}
    for name, each in {**histograms, TOGETHER: together}.items():
        sequences = int(each.sequences[0, 0].sum())
        result[name] = {"sequences": sequences, "tokens": sequences * each.distances.shape[-1]}
        for k, kind in enumerate(KINDS):
            result[name][kind] = {
                str(size): _numbers(Histograms(each.distances[k, i], each.sequences[k, i])) for i, size in enumerate(n)
            }
    return result


def _numbers(histograms: Histograms) -> Json:
    by_distance = histograms.distances[1:]
    length = len(histograms.distances)
    repeats = int(by_distance.sum())
    sequences = int(histograms.sequences.sum())
    cumulative = np.cumsum(histograms.sequences)
    quantiles = {f"{q:g}": int(np.searchsorted(cumulative, q * sequences)) for q in QUANTILES}
    law = fit_power_law(by_distance)
    return {
        "repeats": repeats,
        "share": repeats / (sequences * length),
        "per_sequence": {"mean": repeats / sequences, **quantiles},
        "within_100": float(by_distance[:NEAR].sum() / repeats) if repeats else None,
        "power_law": law and {key: float(f"{value:.8g}") for key, value in law._asdict().items()},
        "distances": distance_bins(by_distance),
    }


def distance_bins(by_distance: Int64[np.ndarray, "m"]) -> Json:
    """Returns log-spaced bins of distances 1 .. m: `first`, `last`, and the mean `share` of all repeats per
    distance."""
    edges = np.unique(np.geomspace(1, len(by_distance) + 1, _BINS + 1).round().astype(np.int64))
    counts = np.add.reduceat(by_distance, edges[:-1] - 1)
    share = counts / np.diff(edges) / max(by_distance.sum(), 1)
    return {"first": edges[:-1].tolist(), "last": (edges[1:] - 1).tolist(), "share": share.tolist()}


def table(summary: Mapping[str, Json], without_sequence: Sequence[str] = ()) -> str:
    """Returns the numbers as Markdown, with the names of subsets without a sequence."""
    lines = [
        "| n-grams | source | sequences | repeats per sequence: mean | median (quartiles) | of all tokens | within "
        f"{NEAR} tokens | alpha | misfit |",
        "| --- | --- " + "| ---: " * 7 + "|",
    ]
    for kind, label in zip(KINDS, ("all", "without stop words"), strict=True):
        for n in summary[TOGETHER][kind]:
            lines += [_row(f"{n}, {label}", name, each, each[kind][n]) for name, each in summary.items()]
    lines += [
        "",
        "alpha: of the power law p(d) ~ d^-alpha that is fitted to the distances; its standard error supposes that",
        "repeats are independent. misfit: the largest difference between the cumulative shares of distances and law.",
    ]
    if without_sequence:
        lines += ["", f"Too short for one sequence in any shard: {', '.join(without_sequence)}."]
    return "\n".join(lines) + "\n"


def _row(label: str, name: str, subset: Json, numbers: Json) -> str:
    per = numbers["per_sequence"]
    law = numbers["power_law"]
    cells = [
        label,
        name or "(no name)",
        f"{subset['sequences']:,}",
        f"{per['mean']:,.1f}",
        f"{per['0.5']:,} ({per['0.25']:,} to {per['0.75']:,})",
        f"{numbers['share']:.2%}",
        f"{numbers['within_100']:.1%}" if numbers["repeats"] else "",
        f"{law['alpha']:.3f} ± {law['standard_error']:.3f}" if law else "",
        f"{law['misfit']:.3f}" if law else "",
    ]
    return f"| {' | '.join(cells)} |"


class PowerLaw(NamedTuple):
    """p(d) = d^-alpha / sum_{k=1}^{m} k^-alpha for d = 1 .. m."""

    alpha: float
    standard_error: float
    """Standard error of alpha for independent counts; counts of one text are dependent, so the true error is larger."""
    misfit: float
    """Largest difference between the cumulative shares of counts and law (Kolmogorov-Smirnov distance)."""

    def shares(self, m: int) -> Float[np.ndarray, "m"]:
        """p(1) .. p(m)."""
        return _shares(self.alpha, np.log(np.arange(1, m + 1)))


def fit_power_law(counts: Integer[np.ndarray, "m"]) -> PowerLaw | None:
    """Fits the power law under which the counts of distances 1 .. m are most likely, distances truncated to 1 .. m.

    With N counts, mean log-distance L and Z(alpha) = sum_{k=1}^{m} k^-alpha the log-likelihood is
    -N (alpha L + log Z(alpha)). It is concave; at its top the law's own mean of log d is L, and its curvature, N times
    the law's variance of log d, gives the standard error 1 / sqrt(N Var[log d]).

    None if there are no counts, or one distance, the first or the last, has them all.
    """
    n = counts.sum()
    m = len(counts)
    log_d = np.log(np.arange(1, m + 1))
    if n == 0 or n in (counts[0], counts[-1]):
        return None
    wanted = float(counts @ log_d / n)
    low = -_STEEPEST
    high = _STEEPEST
    while high - low > 1e-10:
        alpha = (low + high) / 2
        if _shares(alpha, log_d) @ log_d > wanted:  # the law's mean distance is too large
            low = alpha
        else:
            high = alpha
    alpha = (low + high) / 2
    shares = _shares(alpha, log_d)
    variance = shares @ (log_d - wanted) ** 2
    misfit = np.abs(np.cumsum(shares) - np.cumsum(counts) / n).max()
    return PowerLaw(alpha, float(1 / np.sqrt(n * variance)), float(misfit))


def _shares(alpha: float, log_d: Float[np.ndarray, "m"]) -> Float[np.ndarray, "m"]:
    exponents = -alpha * log_d
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()


def draw_distances(summary: Mapping[str, Json]) -> Figure:
    """Draws Figure 3: share of repeats by distance to the last occurrence, all n-grams of all subsets, and power
    laws."""
    figure, axes = panels(1, 1, size=(5.5, 4.2), title="Distance of repeated n-grams, and fitted power laws")
    for i, (n, numbers) in enumerate(summary[TOGETHER]["all"].items()):
        law = numbers["power_law"]
        _curve(axes[0, 0], numbers, i, label=f"n = {n}" + (f", alpha = {law['alpha']:.2f}" if law else ""))
    _label_distances(axes[0, 0])
    add_legend(figure)
    return figure


def draw_distances_by_source(summary: Mapping[str, Json]) -> Figure:
    """Draws Figure 5: the same per subset, without n-grams with stop words; one panel per n."""
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


def draw_repeats_by_source(summary: Mapping[str, Json]) -> Figure:
    """Draws Figure 4: repeated n-grams without stop words per sequence and subset: means, and quartiles as lines."""
    sources = _sources(summary)
    sizes = list(summary[TOGETHER]["content"])
    title = "Repeated n-grams without stop words in a sequence, by source"
    figure, axes = panels(1, 1, size=(max(5.5, 2 + 0.7 * len(sources)), 4.2), title=title)
    panel = axes[0, 0]
    width = 0.8 / len(sizes)
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


def _curve(panel: Axes, numbers: Json, series: int, *, label: str) -> None:
    """Draws the non-empty bins, and the law."""
    first, last, share = (np.array(numbers["distances"][key]) for key in ("first", "last", "share"))
    middle = np.sqrt(first * last)
    is_met = share > 0
    if not is_met.any():
        return
    style = series_style(series)
    panel.plot(middle[is_met], share[is_met], **{**style, "linestyle": "", "markersize": 3.5}, label=label)
    if numbers["power_law"]:
        shares = PowerLaw(**numbers["power_law"]).shares(int(last[-1]))
        panel.plot(np.arange(1, last[-1] + 1), shares, **_LAW, color=style["color"])


def _label_distances(panel: Axes) -> None:
    panel.set_xlabel("tokens since the n-gram was last")
    panel.set_ylabel("share of repeats at a distance")
    plain_log_ticks(panel, "x")
    panel.set_yscale("log")
