"""Style of all pictures: palette, panels, legend, logarithmic axes; files are written whole or not at all.

matplotlib is imported where it is used: the import takes half a second, and matplotlib is optional.
"""

import io
import math
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import numpy as np

type Axes = matplotlib.axes.Axes
type Figure = matplotlib.figure.Figure


class SeriesStyle(NamedTuple):
    """How one series is told from the others: by each of the two, so that no colour needs to be seen."""

    color: str
    marker: str


PALETTE = (
    SeriesStyle("#0072B2", "o"),
    SeriesStyle("#D55E00", "s"),
    SeriesStyle("#009E73", "D"),
    SeriesStyle("#CC79A7", "^"),
    SeriesStyle("#E69F00", "v"),
    SeriesStyle("#56B4E9", "P"),
    SeriesStyle("#8A6D00", "X"),
    SeriesStyle("#000000", "<"),
)
"""Colours of Okabe and Ito, but for their yellow, which is brown here: it fades on white."""
UNKNOWN = SeriesStyle("#777777", ".")
"""A series that has no place in the palette."""
LINES = ("-", (0, (6, 2)), (0, (1, 1.5)), (0, (4, 2, 1, 2)))
"""Line styles: full, dashed, dotted, dashes and dots."""

TITLE_POINTS = 10
"""Size of the titles of figures and panels."""
LEGEND_POINTS = 8
CAPTION_POINTS = 7
DPI = 150
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Settings of matplotlib for the axes of `panels`; other figures of the process keep theirs."""
TICKS = {1: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 3: (1.0, 2.0, 5.0), math.inf: (1.0,)}
"""Decades that a logarithmic axis spans at most, and the multiples of powers of 10 that it shows then."""


def series_style(i: int) -> dict[str, Any]:
    """Arguments of `Axes.plot` for series `i`; colours repeat with other line styles."""
    line = LINES[i // len(PALETTE) % len(LINES)]
    return {**PALETTE[i % len(PALETTE)]._asdict(), "linestyle": line, "linewidth": 1.5, "markersize": 4.5}


def bound_style(i: int = 0) -> dict[str, Any]:
    """Arguments of `Axes.plot` for bound `i`: grey, broken, without marker."""
    return {"color": "#333333", "linestyle": LINES[1 + i % (len(LINES) - 1)], "linewidth": 1.2}


def panels(
    rows: int, columns: int, *, size: tuple[float, float], title: str, **options: Any
) -> "tuple[Figure, np.ndarray]":
    """A figure of `size` inches with a title, and its axes, (rows, columns). `options` are those of `subplots`."""
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=TITLE_POINTS)
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def add_legend(figure: Figure) -> None:
    """Adds one legend for all panels below them, each label once."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    widths = [LEGEND_POINTS / 72 * (5 + 0.6 * len(label)) for label in found]  # inches: handle, gaps and letters
    width = figure.get_figwidth()
    columns = len(found) if sum(widths) < width else max(1, int(width / max(widths)))
    where = {"loc": "outside lower center", "ncols": columns}
    figure.legend(list(found.values()), list(found), fontsize=LEGEND_POINTS, frameon=False, **where)


def add_caption(figure: Figure, text: str) -> None:
    """Adds a text in small letters below a finished figure, which becomes higher."""
    _show_dollars(figure)
    figure.draw_without_rendering()  # the last time that the layout is made
    figure.set_layout_engine("none")
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(text, int(72 * width / (0.56 * CAPTION_POINTS)))
    whole = height + (1.3 * len(lines) + 1) * CAPTION_POINTS / 72
    kept, below = height / whole, 1 - height / whole
    places = [axes.get_position() for axes in figure.axes]
    figure.set_size_inches(width, whole)
    for axes, place in zip(figure.axes, places, strict=True):
        axes.set_position((place.x0, below + kept * place.y0, place.width, kept * place.height))
    for title in figure.texts:
        title.set_y(below + kept * title.get_position()[1])
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, below, 1, kept), figure.transFigure)
    style: dict[str, Any] = {"fontsize": CAPTION_POINTS, "color": "#555555", "va": "top", "parse_math": False}
    figure.text(0.05 / width, below, "\n".join(lines), **style)


def plain_log_ticks(axes: Axes, which: Literal["x", "y"], values: Iterable[float] = ()) -> None:
    """Makes a logarithmic axis (`which`: "x" or "y") with plain numbers, after its limits are known.

    Ticks are at `values`; without any, at round numbers.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    ticks = sorted(set(values))
    low, high = axis.get_view_interval()
    subs = next(subs for decades, subs in TICKS.items() if high <= low * 10**decades)
    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    if len(ticks) > 5:
        axes.tick_params(which, labelrotation=30)


def render(figure: Figure, kind: str) -> bytes:
    """Returns the picture as `png`, `svg` and the like; equal figures give equal bytes."""
    picture = io.BytesIO()
    _draw(figure, picture, kind)
    return picture.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Writes the picture, in the format of the file's suffix: whole, by way of `path` + ".tmp", or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        _draw(figure, unfinished, path.suffix.removeprefix("."))
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def import_matplotlib() -> Any:
    """Imports matplotlib whatever MPLBACKEND says: it refuses the name of a backend that is not installed here."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    return matplotlib


def _show_dollars(figure: Figure) -> None:
    """Disables mathtext: names of runs may contain dollar signs."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if "\\mathdefault" not in text.get_text():  # a tick of a logarithmic axis
            text.set_parse_math(False)


def _draw(figure: Figure, target: Path | io.BytesIO, kind: str) -> None:
    matplotlib = import_matplotlib()
    _show_dollars(figure)
    with matplotlib.rc_context({"svg.hashsalt": "figure"}):
        figure.savefig(target, dpi=DPI, format=kind, metadata={"Date": None} if kind == "svg" else None)
