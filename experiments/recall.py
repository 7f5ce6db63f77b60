"""Shared parts of the recall figures: data, plots of accuracy over the width, and the width that a model needs."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxzoo.sweep import Finding, Missing, Results
from jaxzoo.sweep.curves import curve, guessing
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.utils.figure import TITLE_POINTS, Figure, add_legend, panels, plain_log_ticks

SOLVED = 0.9
"""Zoology, Sec. 4.3: a model that needs some width has at most this accuracy below it."""


def data(task: TaskConfig, *, train: int, valid: int) -> RecallDataConfig:
    """Makes data with the same task for training and validation."""
    return RecallDataConfig(
        train=(Examples(task=task, n_examples=train),), valid=(Examples(task=task, n_examples=valid),)
    )


def mixture(task: Callable[[int], TaskConfig], sizes: Sequence[int], *, train: int, valid: int) -> RecallDataConfig:
    """Makes data with a task at several sizes, trained in order with equally many examples, validated at the last
    one."""
    learned = tuple(Examples(task=task(size), n_examples=train // len(sizes)) for size in sizes)
    return RecallDataConfig(train=learned, valid=(Examples(task=task(sizes[-1]), n_examples=valid),))


def draw_over_width(
    results: Results,
    *,
    title: str,
    models: Sequence[Sequence[str]],
    panel: str = "length",
    panel_title: str = "sequence length {}",
) -> Figure:
    """Draws accuracy over the width: one panel per value of the axis `panel`, one curve per model. `models` lists names
    for each row of panels; a model has the same style in all rows."""
    names = list(dict.fromkeys(name for row in models for name in row))
    values, widths = results.values(panel), results.values("d_model")
    columns = max(1, len(values))
    size = (max(5.0, 1.0 + 2.7 * columns), 1.0 + 2.6 * len(models))
    figure, axes = panels(len(models), columns, size=size, title=title, sharex=True, sharey=True)
    for row, shown in zip(axes, models, strict=True):
        for value, place in zip(values, row, strict=False):
            for name in shown:
                points = [{"model": name, panel: value, "d_model": width} for width in widths]
                curve(place, results, x="d_model", points=points, label=name, series=names.index(name))
            guessing(place, results.select(**{panel: value}))
            place.set_title(panel_title.format(value), fontsize=TITLE_POINTS)
        row[0].set(ylabel="accuracy, mean of the seeds", ylim=(-0.03, 1.03))
    for place in axes.flat:
        plain_log_ticks(place, "x", widths)
    for place in axes[-1]:
        place.set(xlabel="model width")
    add_legend(figure)
    return figure


def accuracies(results: Results, **where: Any) -> dict[int, float]:
    """Returns the best accuracy at each width. Raises `Missing` if there is no finished run."""
    found: dict[int, float] = {}
    for width in results.values("d_model", **where):
        try:
            found[width] = results.score(d_model=width, **where)
        except Missing:
            continue
    if not found:
        raise Missing(f"no finished run at {in_words(where)}")
    return found


def least_width(results: Results, *, above: float = SOLVED, **where: Any) -> float:
    """Returns the smallest width with an accuracy above `above`; infinite if none has. Raises `Missing` if a run is not
    finished."""
    results.require(**where)
    return min((width for width, score in accuracies(results, **where).items() if score > above), default=math.inf)


def at_least_two(results: Results, axis: str, **where: Any) -> list[Any]:
    """Returns the values of an axis. Raises `Missing` if there are fewer than two."""
    values = results.values(axis, **where)
    if len(values) < 2:
        raise Missing(f"one {axis} only at {in_words(where)}" if values else f"no finished run at {in_words(where)}")
    return values


def constant_width(results: Results, *, model: str, above: float = SOLVED) -> Finding:
    """Tests whether one width below the longest length suffices for a model at all lengths."""
    lengths = at_least_two(results, "length", model=model)
    found = {n: accuracies(results, model=model, length=n) for n in lengths}
    widths = sorted(set.intersection(*(set(scores) for scores in found.values())))
    narrow = [width for width in widths if width < max(lengths)]
    if not narrow:
        raise Missing(f"no width of {model} below N = {max(lengths)} at all lengths")
    enough = [width for width in narrow if all(scores[width] > above for scores in found.values())]
    shown = enough[0] if enough else narrow[-1]
    numbers = ", ".join(f"{scores[shown]:.2f} at N = {n}" for n, scores in found.items())
    return Finding(bool(enough), f"{model} with d = {shown}: {numbers}")


def needs_less(results: Results, *, model: str, than: Sequence[str], axis: str = "length") -> Finding:
    """Tests whether a model needs no more width than each other at any value of an axis, and less at the largest."""
    names = [model, *(name for name in than if results.select(model=name))]
    values = [n for n in results.values(axis) if all(results.select(model=name, **{axis: n}) for name in names)]
    if len(names) == 1 or not values:
        raise Missing(f"no runs of {model} and {' or '.join(than)} at one {axis}")
    if len(values) < 2 or len(results.values("d_model", model=model)) < 2:
        raise Missing(f"one width or one {axis} of {model} and {' or '.join(than)} only")
    own, *others = [[least_width(results, model=name, **{axis: n}) for n in values] for name in names]
    holds = all(a <= b for other in others for a, b in zip(own, other, strict=True))
    return Finding(
        holds and all(own[-1] < other[-1] for other in others), least_widths_in_words(results, names, axis, values)
    )


def least_widths_in_words(results: Results, models: Sequence[str], axis: str, values: Sequence[Any]) -> str:
    """Formats `d for more than 0.9 at length 16, 32: BaseConv 32, 64; Hyena 64, >64`. Raises `Missing`."""
    found = []
    for model in models:
        widths = []
        for value in values:
            where = {"model": model, axis: value}
            least = least_width(results, **where)
            widths.append(f">{max(accuracies(results, **where))}" if math.isinf(least) else f"{least:g}")
        found.append(f"{model} {', '.join(widths)}")
    return f"d for more than {SOLVED:g} at {axis.removeprefix('n_')} {', '.join(map(str, values))}: {'; '.join(found)}"


def in_words(where: dict[str, Any]) -> str:
    """Formats coordinates: `model Mamba or H3, length 64`."""
    words = {axis: " or ".join(map(str, v)) if isinstance(v, tuple) else v for axis, v in where.items()}
    return ", ".join(f"{axis} {value}" for axis, value in words.items())
