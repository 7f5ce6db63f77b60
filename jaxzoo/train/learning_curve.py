"""The learning curve of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxzoo.train.metrics import Row
from jaxzoo.utils.figure import Axes, add_legend, bound_style, panels, plain_log_ticks, save, series_style

ACCURACY = "valid/accuracy"
BITS = "valid/bits_per_byte"
SLICE = f"{ACCURACY}/"


def draw_learning_curve(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draws loss, and accuracy by slice (or bits per byte with the baselines), over steps.

    With three or more validated lengths, a third panel shows the last accuracy, or bits per byte, by length.
    """
    is_text = any(BITS in row for row in rows)
    name = f"{BITS if is_text else ACCURACY}/length="
    last = next((row for row in reversed(rows) if any(key.startswith(name) for key in row)), {})
    by_length = sorted((int(key.removeprefix(name)), value) for key, value in last.items() if key.startswith(name))
    columns = 3 if len(by_length) > 2 else 2
    figure, ((left, right, *third),) = panels(1, columns, size=(5 * columns, 4.2), title=title)
    _line(left, rows, "train/loss", 0, marker="", linewidth=1.0, alpha=0.7)
    _line(left, rows, "valid/loss", 1)
    left.set(xlabel="step", ylabel="loss (nats per token)")
    if is_text:
        _line(right, rows, BITS, 2)
        baselines = {name: row[name] for row in rows for name in row if name.startswith("baseline/")}
        for i, (name, value) in enumerate(n for n in baselines.items() if n[0].endswith("/bits_per_byte")):
            right.axhline(value, **bound_style(i), label=name.split("/")[1])
        right.set(xlabel="step", ylabel="validation bits per byte", ylim=(0, None))
    else:
        names = list(dict.fromkeys(name for row in rows for name in row if name.startswith(SLICE)))
        pairs = [name for name in names if name.startswith(f"{SLICE}pairs=")]
        for i, name in enumerate(pairs or names or [ACCURACY]):
            _line(right, rows, name, 2 + i)
        right.set(xlabel="step", ylabel="validation accuracy", ylim=(-0.02, 1.02))
    for axes in third:
        lengths, values = zip(*by_length, strict=True)
        axes.plot(lengths, values, **series_style(0))
        axes.set(xlabel="tokens", ylabel="at the last validation", ylim=(0, None) if is_text else (-0.02, 1.02))
        plain_log_ticks(axes, "x", lengths)
    add_legend(figure)
    save(figure, path)


def _line(axes: Axes, rows: Sequence[Row], name: str, series: int, **style: Any) -> None:
    """`name` over steps; the legend is shared by both panels, so each series has its own number."""
    points = [(row["step"], row[name]) for row in rows if name in row]
    if not points:
        return
    # In words: `train/loss` is "training loss", `valid/accuracy/pairs=8` is "8 pairs".
    label, value = name.removeprefix(SLICE).split("=") if "=" in name else (name, "")
    words = label.replace("train/", "training ").replace("valid/", "validation ").replace("_", " ")
    label = f"{value} {words}" if value and words.endswith("s") else f"{words} {value}".strip()
    axes.plot(*zip(*points, strict=True), **series_style(series) | style, label=label)
