"""The curves of the benchmark of generation as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws prefill speed over length, decode speed over batch, and time and state of a token over context.

    Args:
      report: what `measure` and `environment` gave.
      path: of the PNG file.
    """
    from matplotlib.figure import Figure  # half a second of import, paid only by those who draw

    figure = Figure(figsize=(10, 8), layout="constrained")
    (prefill, batch), (context, memory) = figure.subplots(2, 2)
    figure.suptitle(_title(report))
    _curves(prefill, report["prefill"], "length", lambda row: row["tokens_per_second"])
    _label(prefill, "prompt, tokens", "prefill, tokens/s")
    _curves(batch, report["decode_by_batch"], "batch", lambda row: row["tokens_per_second"])
    _label(batch, "batch size", "decode without prompt, tokens/s")
    _curves(context, report["decode_by_context"], "context", lambda row: 1e3 * row["seconds"] / row["steps"])
    _label(context, "context, tokens", "time of a decode step, ms")
    _curves(memory, report["decode_by_context"], "context", lambda row: row["state_bytes"] / 2**20)
    _label(memory, "context, tokens", "state of a sequence, MiB")
    prefill.legend()
    figure.savefig(path, dpi=120, format="png")


def _title(report: dict[str, Any]) -> str:
    sizes = ", ".join(f"{model['model']} {model['parameters'] / 1e6:.1f}M" for model in report["models"])
    return f"{sizes}\n{report['device']}, jax {report['versions']['jax']}, {report['date']}"


def _curves(axes: "Axes", rows: Sequence[Row], x: str, y: Callable[[Row], float]) -> None:
    """One line a model; it ends where memory did."""
    for i, name in enumerate(dict.fromkeys(row["model"] for row in rows)):
        measured = [row for row in rows if row["model"] == name and "out_of_memory" not in row]
        axes.plot([row[x] for row in measured], [y(row) for row in measured], f"C{i}o-", markersize=4, label=name)
    axes.set_xscale("log", base=2)


def _label(axes: "Axes", x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y, yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
