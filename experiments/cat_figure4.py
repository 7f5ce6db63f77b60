"""The dimension that landmarks need, over the size of a block: CAT, Figure 4.

`jaxzoo sweep --experiment experiments/cat_figure4.py --scale paper --out sweeps/cat_figure4`

Nothing is trained. Random contexts of noise level 1 (`experiments/landmarks.py`): the band of dimensions at which 10 %
to 50 % of the contexts retrieve the right block, and, dashed, the bounds of Propositions 1 and 2 at t = 0. Left, one
fixed query, with the mean of a block and with exponential smoothing; right, all queries of a subspace at once. The
simulation is exact at any length and needs no tokens: it draws one number per landmark (two on the right). The scale
`paper` takes a minute on one core.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.landmarks import BOUND, HIGH, LOW, band
from experiments.recall import at_least_two
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Measurement, Missing, Results, Scale, grid
from jaxzoo.sweep.curves import marked_line
from jaxzoo.utils.figure import TITLE_POINTS, Figure, add_legend, bound_style, panels, plain_log_ticks, series_style

MEAN, EXPONENTIAL = {"smoothing": "mean", "query_dim": 0}, {"smoothing": "exponential", "query_dim": 0}
LINEAR = (0.8, 1.2)
"""Exponents that count as approximately linear."""
ACCURATE = 2
"""Largest ratio at which a bound counts as accurate."""


def _scale(about: str, *, length: int, block_sizes: Sequence[int], query_dims: Sequence[int], draws: int) -> Scale:
    return Scale(
        about=about,
        points=grid(smoothing=("mean", "exponential"), query_dim=(0,), block_size=block_sizes)
        + grid(smoothing=("mean",), query_dim=query_dims, block_size=block_sizes),
        config=lambda point: Measurement(band, {"length": length, "draws": draws, **point}),
    )


def _paper() -> Scale:
    return _scale(
        "2^20 tokens and noise level 1 as in the figure. Not printed, and ours: the sizes of blocks and of spaces of "
        "queries, and 1,000 contexts a point.",
        length=2**20,
        block_sizes=(16, 32, 64, 128, 256, 512, 1024),
        query_dims=(4, 16, 64),
        draws=1000,
    )


def _smoke() -> Scale:
    return _scale(
        "A thousand tokens and a hundred contexts: that all of it runs.",
        length=1000,
        block_sizes=(8, 32),
        query_dims=(3,),
        draws=100,
    )


def _growth(results: Results, **where: Any) -> float:
    """Returns the exponent of the block size in the dimension at which half of the contexts succeed."""
    sizes = at_least_two(results, "block_size", **where)
    dimensions = [results.score(HIGH, block_size=size, **where) for size in sizes]
    return float(np.polyfit(np.log(sizes), np.log(dimensions), 1)[0])


def _linear(results: Results) -> Finding:
    exponent = _growth(results, **MEAN)
    return Finding(LINEAR[0] <= exponent <= LINEAR[1], f"d grows as B^{exponent:.2f}")


def _ratios(results: Results, above: str, below: str, **where: Any) -> list[float]:
    """Returns one metric over another at each block size."""
    sizes = results.values("block_size", **where)
    if not sizes:
        raise Missing(f"nothing computed at {where}")
    at = [{"block_size": size, **where} for size in sizes]
    return [results.score(above, **place) / results.score(below, **place) for place in at]


def _accurate(results: Results) -> Finding:
    ratios = _ratios(results, BOUND, HIGH, **MEAN)
    numbers = f"the bound at t = 0 is {min(ratios):.2f} to {max(ratios):.2f} of the d at 50 %"
    return Finding(min(ratios) >= 1 and max(ratios) <= ACCURATE, numbers)


def _more_queries(results: Results) -> Finding:
    """Tests whether larger spaces of queries need more dimensions at each block size."""
    dims = at_least_two(results, "query_dim", smoothing="mean")
    sizes = results.values("block_size", smoothing="mean")
    found = [[results.score(HIGH, smoothing="mean", query_dim=n, block_size=b) for n in dims] for b in sizes]
    holds = all(row == sorted(set(row)) for row in found)
    spaces = ", ".join(
        f"{d:.0f} for {f'{n} dimensions' if n else 'one query'}" for n, d in zip(dims, found[-1], strict=True)
    )
    return Finding(holds, f"at B = {sizes[-1]}: {spaces}")


def _similar(results: Results) -> Finding:
    """Tests whether exponential smoothing needs the dimension of the mean up to a factor that does not depend on B."""
    shared = set(at_least_two(results, "block_size", **EXPONENTIAL)) & set(results.values("block_size", **MEAN))
    factors = [
        results.score(HIGH, block_size=b, **EXPONENTIAL) / results.score(HIGH, block_size=b, **MEAN)
        for b in sorted(shared)
    ]
    if len(factors) < 2:
        raise Missing("fewer than two sizes of a block with both filters")
    numbers = f"{min(factors):.2f} to {max(factors):.2f} times the d of the mean"
    return Finding(max(factors) / min(factors) <= ACCURATE, numbers)


def _enough(results: Results) -> Finding:
    ratios = _ratios(results, BOUND, HIGH, **EXPONENTIAL)
    return Finding(min(ratios) >= 1, f"the bound at t = 0 is {min(ratios):.1f} to {max(ratios):.1f} of the d at 50 %")


def draw(results: Results) -> Figure:
    """Draws two panels: the fixed query by filter, and the mean by space of queries."""
    title = "Landmarks: dimensions at which 10 % to 50 % of the contexts succeed"
    figure, (axes,) = panels(1, 2, size=(9.2, 4.6), title=title, sharex=True, sharey=True)
    axes[0].plot([], [], **bound_style(), label="bound of the proposition, t = 0")
    dims = results.values("query_dim", smoothing="mean")
    left = [(MEAN, "mean"), (EXPONENTIAL, "exponential smoothing")]
    right = [({**MEAN, "query_dim": n}, f"all queries of {n} dimensions" if n else "mean") for n in dims]
    styles = list(dict.fromkeys(label for _, label in (*left, *right)))
    names = ("one fixed query", "mean, all queries of a subspace")
    for panel, series, name in zip(axes, (left, right), names, strict=True):
        for where, label in series:
            _band(panel, results.select(**where), label, styles.index(label))
        panel.set_title(name, fontsize=TITLE_POINTS)
        panel.set(xlabel="tokens of a block")
        plain_log_ticks(panel, "x", results.values("block_size"))
        plain_log_ticks(panel, "y")
    axes[0].set(ylabel="model width")
    add_legend(figure)
    return figure


def _band(panel: Any, rows: Sequence[Any], label: str, i: int) -> None:
    if not rows:
        return
    rows = sorted(rows, key=lambda row: row["point"]["block_size"])
    sizes = [row["point"]["block_size"] for row in rows]
    low, high, bound = ([row["metrics"].get(name, math.nan) for row in rows] for name in (LOW, HIGH, BOUND))
    color = series_style(i)["color"]
    panel.fill_between(sizes, low, high, color=color, alpha=0.25, linewidth=0)
    marked_line(panel, sizes, high, label=f"{label}: 50 %", series=i)
    panel.plot(sizes, bound, **{**bound_style(), "color": color})


def _made_up(point: Any) -> dict[str, float]:
    """Values of the paper's figure: proportional to the block, more for spaces of queries, within the bounds."""
    exponential = point["smoothing"] == "exponential"
    high = 10.0 * point["block_size"] * (1 + point["query_dim"]) * (1.25 if exponential else 1)
    return {LOW: 0.8 * high, HIGH: high, BOUND: (24 if exponential else 1.2) * high}


def _quadratic(point: Any) -> dict[str, float]:
    return {HIGH: float(point["block_size"] ** 2)}


experiment = Experiment(
    title="CAT, Figure 4",
    about="The embedding dimension that retrieval by landmarks needs over the size of a block, in contexts of random "
    "tokens, a million of them; beside the paper's figure exponential smoothing (Proposition 2).",
    scales={"smoke": _smoke, "laptop": _paper, "paper": _paper},
    claims=(
        Claim(
            name="linear",
            text="The dimension at which half of the contexts succeed grows as a power of the block size of 0.8 "
            "to 1.2.",
            quote="As the block size increases, the embedding dimension to maintain success of AR grows approximately "
            "linearly.",
            source="CAT, Sec. 5, on Figure 4",
            rule="0.2 of the exponent leaves room for the logarithm of the number of blocks, which falls as they grow.",
            controls=(),
            holds=_linear,
            broken_by=(Change({}, {HIGH: 100.0}),),
        ),
        Claim(
            name="accurate",
            text=f"The bound of Proposition 1 at t = 0 is above the dimension at 50 %, within a factor of {ACCURATE}.",
            quote="Proposition 1 accurately captures the empirical behavior.",
            source="CAT, caption of Figure 4",
            rule="It is a sufficient condition, hence above; a factor of 2 is small where d spans two decades.",
            controls=(),
            holds=_accurate,
            broken_by=(Change(MEAN, {BOUND: 1.0}),),
        ),
        Claim(
            name="queries",
            text="A larger space of queries needs more dimensions, at every size of a block.",
            quote="For the success of uniform AR, we need larger d as the dimension of the query space S grows.",
            source="CAT, caption of Figure 4",
            rule="Quantiles of 1,000 contexts, which differ by far more than their noise: no tolerance.",
            controls=(),
            holds=_more_queries,
            broken_by=(Change({}, {HIGH: 100.0}),),
        ),
        Claim(
            name="smoothing",
            text="The dimension of exponential smoothing is that of the mean, up to a factor that changes by 2 at most "
            "with the size of a block.",
            quote="A particular SSM choice of state dimension 1 is simply using exponential smoothing. This yields the "
            "following SSM variant of Proposition 1.",
            source="CAT, Sec. 5, on Proposition 2",
            rule="The same factor as for accurate; the dimension itself changes by 64 over these blocks.",
            controls=(),
            holds=_similar,
            broken_by=(Change(EXPONENTIAL, _quadratic),),
        ),
        Claim(
            name="enough",
            text="The dimension of Proposition 2 at t = 0 is above that at which half of the contexts succeed.",
            quote="Consider the setting of Proposition 1 with the exponential smoothing filter",
            source="CAT, Proposition 2",
            rule="It is a sufficient condition: no tolerance.",
            controls=(),
            holds=_enough,
            broken_by=(Change(EXPONENTIAL, {BOUND: 1.0}),),
        ),
    ),
    made_up=_made_up,
    draw=draw,
)
