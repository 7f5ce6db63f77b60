"""Picture of the report of `mixers_cpu.py`: one column per family of mixers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxzoo.utils.figure import TITLE_POINTS, Axes, add_legend, panels, plain_log_ticks, save, series_style

Row = dict[str, Any]


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draws forward and backward (above) and one decode step (below) against the length."""
    subjects = report["subjects"]
    families = list(dict.fromkeys(subject["family"] for subject in subjects.values()))
    title = (
        f"model width {report['width']}, batch {report['batch']}, one thread\n"
        f"{report['device']}, jax {report['versions']['jax']}, {report['date']}"
    )
    figure, (above, below) = panels(2, len(families), size=(3.2 * len(families), 8), title=title, sharey="row")
    ordered = sorted(subjects, key=lambda name: families.index(subjects[name]["family"]))
    for column, family in enumerate(families):
        rows = {i: name for i, name in enumerate(ordered) if subjects[name]["family"] == family}
        curves = {i: (name, subjects[name]["rows"]) for i, name in rows.items()}
        _curves(above[column], curves, lambda row: row.get("cpu_ms"))
        _curves(below[column], curves, lambda row: row.get("step_cpu_us"))
        above[column].set_title(family, fontsize=TITLE_POINTS)
        below[column].set(xlabel="tokens")
    above[0].set(ylabel="forward and backward, CPU ms")
    below[0].set(ylabel="decode step after as many tokens, CPU µs")
    for axes in figure.axes:
        plain_log_ticks(axes, "y")
    add_legend(figure)
    save(figure, path)


def _curves(axes: Axes, curves: Mapping[int, tuple[str, list[Row]]], y: Callable[[Row], float | None]) -> None:
    """Draws one line per subject with the style of its index; it ends where memory runs out."""
    lengths: set[int] = set()
    for i, (name, rows) in curves.items():
        points = [(row["length"], value) for row in rows if (value := y(row)) is not None]
        lengths |= {length for length, _ in points}
        if points:
            axes.plot(*zip(*points, strict=True), **series_style(i), label=name)
    plain_log_ticks(axes, "x", lengths)
