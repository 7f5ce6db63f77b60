"""The page of the benchmark: a figure of pairs recalled against state bytes, and a table of all rows."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.bench.protocol import Protocol
from jaxzoo.bench.rows import BenchRow, Cell
from jaxzoo.utils.figure import Figure, add_legend, panels, plain_log_ticks, save, series_style
from jaxzoo.utils.text_table import markdown_table
from jaxzoo.utils.whole_files import write_whole

HEADS = ("mixer", "task", "state, bytes", "rate", "score", "seeds", "solved", "parameters", "tokens/s of a layer")


def write_page(
    rows: Sequence[BenchRow], protocol: Protocol, folder: Path, *, own: str = "", not_run: Sequence[str] = ()
):
    """Writes `page.md` and `page.png`; `own`: name of the row that is drawn thicker."""
    save(draw(rows, protocol, own), folder / "page.png")
    write_whole(folder / "page.md", markdown(rows, protocol, not_run))


def markdown(rows: Sequence[BenchRow], protocol: Protocol, not_run: Sequence[str] = ()) -> str:
    """Returns the page's text."""
    about = (
        f"Protocol {protocol.name}. capacity: pairs recalled of {protocol.pairs[-1]}; overwrite: of "
        f"{protocol.overwritten_pairs[-1]}; track: accuracy after {protocol.track_lengths[-1]} moves. The score is the "
        "median of the seeds."
    )
    picture = "![pairs recalled against state bytes](page.png)"
    return "\n\n".join(["# Recall per byte", about, picture, results(rows, protocol, not_run)]) + "\n"


def results(rows: Sequence[BenchRow], protocol: Protocol, not_run: Sequence[str] = ()) -> str:
    """Returns the table of all rows, and notes."""
    lines = [[*HEADS]]
    notes = []
    for row in rows:
        for cell in row.cells:
            scores = [protocol.score(cell.task, run.accuracy) for run in cell.runs]
            solved = sum(protocol.is_solved(run.accuracy) for run in cell.runs)
            seeds = " ".join(f"{score:.2f}" for score in scores)
            size, rate = f"{cell.state_bytes:,}", f"{cell.runs[0].learning_rate:g}"
            facts = [size, rate, f"{statistics.median(scores):.2f}", seeds, f"{solved}/{len(scores)}"]
            speed = f"{row.made_by.tokens_per_second:,.0f}"
            lines.append([row.name, cell.task, *facts, f"{cell.n_parameters:,}", speed])
        reached = {cell.size for cell in row.cells}
        missing = [f"{size:,}" for size in protocol.sizes if size not in reached]
        if missing:
            notes.append(f"{row.name}: {', '.join(missing)} bytes not reached within {protocol.tolerance:.0%}.")
        if row.grows:
            notes.append(f"{row.name}: the state grows; measured at {protocol.length} tokens.")
    if not_run:
        notes.append(f"Not run yet: {', '.join(not_run)}.")
    return "\n\n".join([markdown_table(lines), *notes])


def draw(rows: Sequence[BenchRow], protocol: Protocol, own: str = "") -> Figure:
    """Draws pairs recalled against state bytes: states of fixed size with their frontier, and growing states."""
    title = f"Recall per byte: pairs recalled of {protocol.pairs[-1]} (protocol {protocol.name})"
    figure, ((fixed, growing),) = panels(1, 2, size=(9, 4.5), title=title, sharey=True, width_ratios=(3, 2))
    for number, row in enumerate(rows):
        style = series_style(number)
        if row.name == own:
            style |= {"linewidth": 3.5, "markersize": 9}
        points = [_point(cell, protocol) for cell in row.of("capacity")]
        (growing if row.grows else fixed).plot(*zip(*points, strict=True), label=row.name, **style)
    edge = frontier([_point(cell, protocol) for row in rows if not row.grows for cell in row.of("capacity")])
    if edge:
        fixed.step(*zip(*edge, strict=True), where="post", color="black", linewidth=1, linestyle="--", label="frontier")
    for axes, words in ((fixed, "states of fixed size"), (growing, f"growing states, at {protocol.length} tokens")):
        axes.set(xlabel="state of a sequence in the layer, bytes", ylim=(0, 1.05 * protocol.pairs[-1]))
        axes.set_title(words, fontsize=9)
        plain_log_ticks(axes, "x", protocol.sizes)
    fixed.set(ylabel="pairs recalled, median of the seeds")
    add_legend(figure)
    return figure


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points that no point with as small a state exceeds, the smallest state first."""
    found: list[tuple[float, float]] = []
    for size, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or score > found[-1][1]:
            found.append((size, score))
    return found


def _point(cell: Cell, protocol: Protocol) -> tuple[float, float]:
    return cell.state_bytes, statistics.median(protocol.score(cell.task, run.accuracy) for run in cell.runs)
