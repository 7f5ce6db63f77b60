"""The learning curve of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxzoo.train.metrics import Row
from pallas_kernels.figure import add_legend, bound_style, panels, plain_log_ticks, save, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCURACY, BITS = "valid/accuracy", "valid/bits_per_byte"
SLICE = f"{ACCURACY}/"


def draw_learning_curve(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draws loss (left) and accuracy by slice, or bits per byte with the baselines (right), over steps.

    Where three lengths or more are validated, a third panel has the last accuracy, or bits per byte, by length.

    Args:
      rows: those of `metrics.jsonl`.
      path: of the PNG file, which appears whole or not at all.
      title: above the picture.

    Raises:
      OSError: the file cannot be written.
    """
    is_text = any(BITS in row for row in rows)
    by_length = _last_by_length(rows, f"{BITS if is_text else ACCURACY}/length=")
    columns = 3 if len(by_length) > 2 else 2
    figure, ((left, right, *third),) = panels(1, columns, size=(5 * columns, 4.2), title=title)
    _line(left, rows, "train/loss", 0, marker="", linewidth=1.0, alpha=0.7)
    _line(left, rows, "valid/loss", 1)
    left.set(xlabel="step", ylabel="loss (nats per token)")
    if is_text:
        _draw_bits(right, rows)
    else:
        _draw_accuracy(right, rows)
    for axes in third:
        axes.plot(list(by_length), list(by_length.values()), **series_style(0))
        axes.set(xlabel="tokens", ylabel="at the last validation", ylim=(0, None) if is_text else (-0.02, 1.02))
        plain_log_ticks(axes, "x", by_length)
    add_legend(figure)
    save(figure, path)


def _last_by_length(rows: Sequence[Row], name: str) -> dict[int, float]:
    """Values of the last validation under this name by number of tokens, in rising order."""
    last = next((row for row in reversed(rows) if any(key.startswith(name) for key in row)), {})
    found = {int(key.removeprefix(name)): value for key, value in last.items() if key.startswith(name)}
    return dict(sorted(found.items()))


def _draw_accuracy(axes: "Axes", rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row if name.startswith(SLICE)))
    pairs = [name for name in names if name.startswith(f"{SLICE}pairs=")]
    for i, name in enumerate(pairs or names or [ACCURACY]):
        _line(axes, rows, name, 2 + i)
    axes.set(xlabel="step", ylabel="validation accuracy", ylim=(-0.02, 1.02))


def _draw_bits(axes: "Axes", rows: Sequence[Row]) -> None:
    _line(axes, rows, BITS, 2)
    baselines = {name: row[name] for row in rows for name in row if name.startswith("baseline/")}
    for i, (name, value) in enumerate(n for n in baselines.items() if n[0].endswith("/bits_per_byte")):
        axes.axhline(value, **bound_style(i), label=name.split("/")[1])
    axes.set(xlabel="step", ylabel="validation bits per byte", ylim=(0, None))


def _line(axes: "Axes", rows: Sequence[Row], name: str, series: int, **style: Any) -> None:
    """`name` over steps; the legend is shared by both panels, so each series has its own number."""
    points = [(row["step"], row[name]) for row in rows if name in row]
    if points:
        axes.plot(*zip(*points, strict=True), **series_style(series) | style, label=_label(name))


def _label(name: str) -> str:
    """A metric in words: `train/loss` is "training loss", `valid/accuracy/pairs=8` is "8 pairs"."""
    label, value = name.removeprefix(SLICE).split("=") if "=" in name else (name, "")
    words = label.replace("train/", "training ").replace("valid/", "validation ").replace("_", " ")
    return f"{value} {words}" if value and words.endswith("s") else f"{words} {value}".strip()
