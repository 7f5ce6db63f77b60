"""The dimension that landmarks need, by the size of a block: CAT, Figure 4: `python -m experiments.cat_figure4`.

Random contexts of 2^20 tokens, noise level 1, by `jaxzoo.theory.landmark`: the band of dimensions at which 10 % to 50 %
of the contexts retrieve the right block, and, dashed, the bounds of Propositions 1 and 2 at t = 0. Left, one fixed
query, with the mean of a block and with exponential smoothing; right, all queries of a subspace at once. The simulation
is exact at any length: one number a landmark (two on the right), no tokens. One core makes it in a minute.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxzoo.checked import Checked, NonNegativeInt, PositiveInt
from jaxzoo.cli.flags import UsageError, flags_of, parse_flags
from jaxzoo.cli.runner import run
from jaxzoo.screen import Screen
from pallas_kernels.figure import TITLE_POINTS, add_legend, bound_style, panels, plain_log_ticks, save, series_style

PROGRAM = "python -m experiments.cat_figure4"
ROOT = Path(__file__).parents[1]
SHARES = (0.1, 0.5)
"""Success at the ends of a band."""

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Simulates retrieval, and draws the picture."""

    length: PositiveInt = 2**20
    """Tokens of a context."""
    block_sizes: tuple[PositiveInt, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """B; at least three blocks each."""
    query_dims: tuple[NonNegativeInt, ...] = (0, 4, 16, 64)
    """Dimensions of the space of queries; 0: one fixed query."""
    draws: PositiveInt = 1000
    """Contexts."""
    out: Path = ROOT / "benchmarks/results/cat_figure4.json"
    """File of the result."""
    picture: Path = ROOT / "docs/images/cat_figure4.png"
    """File of the picture."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_experiment, argv)


def _experiment(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))
    largest = max(command.block_sizes)
    if command.length < 3 * largest:
        raise UsageError(f"--block-sizes: {largest} must be at most a third of --length {command.length}")
    screen, rows = Screen(sys.stdout), []
    for row in simulate(command):
        rows.append(row)
        screen.say(_in_short(row))
    facts = {"length": command.length, "sigma": 1.0, "draws": command.draws, "rows": rows}
    for path in (command.out, command.picture):
        path.parent.mkdir(parents=True, exist_ok=True)
    command.out.write_text(json.dumps(facts, indent=1) + "\n")
    draw(facts, command.picture)
    screen.say(f"{command.out} and {command.picture}")


def simulate(command: Command) -> Iterator[Row]:
    """A row for each filter, space of queries and size of a block: the band, and its proposition's bound at t = 0."""
    from jaxzoo.theory.landmark import critical_dimensions, sufficient_dimension, uniform_critical_dimensions

    for size in command.block_sizes:
        sizes: Any = {"n_blocks": -(-command.length // size), "block_size": size}
        for smoothing in ("mean", "exponential"):
            found = critical_dimensions(command.draws, smoothing=smoothing, **sizes)
            yield _row(smoothing, 0, found, sufficient_dimension(0.0, smoothing=smoothing, **sizes), sizes)
        for dim in sorted(set(command.query_dims) - {0}):
            found = uniform_critical_dimensions(command.draws, query_dim=dim, **sizes)
            yield _row("mean", dim, found, sufficient_dimension(0.0, query_dim=dim, **sizes), sizes)


def _row(smoothing: str, query_dim: int, critical: np.ndarray, bound: float, sizes: dict[str, int]) -> Row:
    band = [float(x) for x in np.quantile(critical, SHARES)]
    return {"smoothing": smoothing, "query_dim": query_dim, **sizes, "band": band, "bound": bound}


def draw(facts: Row, path: Path) -> None:
    """Two panels: the fixed query by filter, and the mean by space of queries."""
    title = f"Landmarks in {facts['length']:,} tokens: dimensions at which 10 % to 50 % of {facts['draws']:,} contexts"
    figure, (axes,) = panels(1, 2, size=(9.2, 4.6), title=title + " succeed", sharex=True, sharey=True)
    axes[0].plot([], [], **bound_style(), label="bound of the proposition, t = 0")
    dims = sorted({row["query_dim"] for row in facts["rows"]})
    left = [("mean", 0, "mean"), ("exponential", 0, "exponential smoothing")]
    right = [("mean", dim, f"all queries of {dim} dimensions" if dim else "mean") for dim in dims]
    colours = {label: i for i, (*_, label) in enumerate([*left, *right[1:]])}
    for panel, series in zip(axes, (left, right), strict=True):
        for smoothing, dim, label in series:
            rows = [r for r in facts["rows"] if (r["smoothing"], r["query_dim"]) == (smoothing, dim)]
            _band(panel, rows, label, colours[label])
    sizes = sorted({row["block_size"] for row in facts["rows"]})
    for panel, name in zip(axes, ("one fixed query", "mean, all queries of a subspace"), strict=True):
        panel.set_title(name, fontsize=TITLE_POINTS)
        panel.set(xlabel="tokens of a block")
        plain_log_ticks(panel, "x", sizes)
        plain_log_ticks(panel, "y")
    axes[0].set(ylabel="dimension d")
    add_legend(figure)
    save(figure, path)


def _band(panel: Any, rows: Sequence[Row], label: str, i: int) -> None:
    style, sizes = series_style(i), [row["block_size"] for row in rows]
    low, high = zip(*(row["band"] for row in rows), strict=True)
    panel.fill_between(sizes, low, high, color=style["color"], alpha=0.25, linewidth=0)
    panel.plot(sizes, high, **style, label=f"{label}: 50 %")
    bound = {**bound_style(), "color": style["color"]}
    panel.plot(sizes, [row["bound"] for row in rows], **bound)


def _in_short(row: Row) -> str:
    low, high = row["band"]
    queries = f"queries of {row['query_dim']} dimensions" if row["query_dim"] else "one query"
    name = f"{row['smoothing']}, {queries}"
    return f"B {row['block_size']:<5} {name:32} 10 % {low:9.1f}  50 % {high:9.1f}  bound {row['bound']:9.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
