"""The learning curve of a run as a picture."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.train.metrics import Row
from jaxzoo.train.run_dir import unfinished

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SLICE = "valid/accuracy/"


def draw_learning_curve(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draws loss (left) and accuracy by slice, or bits per byte with the baselines (right), over steps.

    Args:
      rows: those of `metrics.jsonl`.
      path: of the PNG file, which appears whole or not at all.
      title: above the picture.

    Raises:
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # half a second of import, paid only by those who draw

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    _line(left, rows, "train/loss", alpha=0.5)
    _line(left, rows, "valid/loss", marker="o", markersize=3)
    left.set(xlabel="step", ylabel="loss (nats a token)")
    left.legend()
    if any("valid/bits_per_byte" in row for row in rows):
        _draw_bits(right, rows)
    else:
        _draw_accuracy(right, rows)
    figure.savefig(unfinished(path), dpi=120, format="png")
    os.replace(unfinished(path), path)


def _draw_accuracy(axes: "Axes", rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row if name.startswith(SLICE)))
    pairs = [name for name in names if name.startswith(f"{SLICE}pairs=")]
    for name in pairs or names or ["valid/accuracy"]:
        _line(axes, rows, name, marker="o", markersize=3)
    axes.set(xlabel="step", ylabel="validation accuracy", ylim=(-0.02, 1.02))
    axes.legend()


def _draw_bits(axes: "Axes", rows: Sequence[Row]) -> None:
    _line(axes, rows, "valid/bits_per_byte", marker="o", markersize=3)
    baselines = {name: row[name] for row in rows for name in row if name.startswith("baseline/")}
    for i, (name, value) in enumerate(n for n in baselines.items() if n[0].endswith("/bits_per_byte")):
        axes.axhline(value, color=f"C{i + 1}", linestyle="--", label=name.split("/")[1])
    axes.set(xlabel="step", ylabel="validation bits per byte", ylim=(0, None))
    axes.legend()


def _line(axes: "Axes", rows: Sequence[Row], name: str, **style: object) -> None:
    points = [(row["step"], row[name]) for row in rows if name in row]
    label = name.removeprefix(SLICE)
    axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)  # type: ignore[arg-type]
