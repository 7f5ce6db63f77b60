"""The picture of the recall slices, after Zoology's Figure 1."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxzoo.evals.recall_slices import DISTANCE_EDGES, FREQUENCY_EDGES, MeasuredModel, SliceScore, bin_names
from pallas_kernels.figure import LINES, add_legend, bound_style, panels, save, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_TICK = 7
"""Letters of a bin's name on an axis; of longer ones the beginning alone is shown, as `1,000 +`."""


def draw_recall(models: Sequence[MeasuredModel], path: Path, *, at_most: int | None, hits: str, title: str) -> None:
    """Draws nats by how often the bigram was seen in training (repeated: full lines, others: dashed), and by distance.

    Bars are standard errors. Where nothing is known of training, there is the panel of distances alone.

    Args:
        models: one or more.
        path: PNG file, which appears whole or not at all.
        at_most: occurrences in training up to which a bigram is rare; None: nothing is known of training.
        hits: name of the hits.
        title: above the picture.

    Raises:
        OSError: the file cannot be written.
    """
    columns = 1 if at_most is None else 2
    figure, ((*frequency, distance),) = panels(1, columns, size=(5 * columns, 4.4), title=title)
    for axes in frequency:
        _draw_frequency(axes, models, at_most)
    names = _shown(bin_names(DISTANCE_EDGES)[1:], models[0].sections.hits_by_distance)
    for i, model in enumerate(models):
        _line(distance, names, model.sections.hits_by_distance, series_style(i), f"{model.name}, repeated bigrams")
    _label(distance, names, f"tokens since the bigram stood last ({hits})")
    add_legend(figure)
    save(figure, path)


def _draw_frequency(axes: "Axes", models: Sequence[MeasuredModel], at_most: int | None) -> None:
    first = models[0].sections
    names = _shown(bin_names(FREQUENCY_EDGES), {**first.repeated_by_frequency, **first.others_by_frequency})
    for i, model in enumerate(models):
        style = series_style(i)
        hollow = {**style, "linestyle": LINES[1], "markerfacecolor": "white"}
        _line(axes, names, model.sections.repeated_by_frequency, style, f"{model.name}, repeated bigrams")
        _line(axes, names, model.sections.others_by_frequency, hollow, f"{model.name}, other bigrams")
    if at_most is not None and (place := _place(at_most)) < len(names):
        axes.axvline(place, **bound_style(1), label=f"seen {at_most:,} times")
    _label(axes, names, "occurrences of the bigram in training")


def _shown(names: list[str], scores: Mapping[str, SliceScore]) -> list[str]:
    """The bins up to the last that holds tokens."""
    return names[: 1 + max((names.index(name) for name in scores), default=-1)]


def _line(axes: "Axes", names: list[str], scores: Mapping[str, SliceScore], style: dict[str, Any], label: str) -> None:
    """Nats over the bins that hold tokens, each in its place among `names`."""
    found = [(i, scores[name]) for i, name in enumerate(names) if name in scores]
    errors = [score.standard_error or 0.0 for _, score in found]
    nats = [score.nats for _, score in found]
    axes.errorbar([i for i, _ in found], nats, errors, **style, elinewidth=1, capsize=2, label=label)


def _label(axes: "Axes", names: list[str], xlabel: str) -> None:
    short = [name if len(name) <= LONGEST_TICK else f"{name.partition('-')[0]} +" for name in names]
    axes.set_xticks(range(len(names)), short, rotation=30, ha="right")
    axes.set(xlabel=xlabel, ylabel="log-perplexity (nats per token)", ylim=(0, None))


def _place(count: int) -> float:
    """Where a count stands on the axis of bins: between two, by its logarithm."""
    edges = (0, *FREQUENCY_EDGES)
    i = max(k for k, edge in enumerate(edges) if edge <= count)
    if i < 2 or i + 1 == len(edges):
        return float(i)
    return i - 0.5 + math.log(count / edges[i]) / math.log(edges[i + 1] / edges[i])
