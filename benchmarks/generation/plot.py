"""The curves of the benchmark of generation as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws prefill speed over length, decode speed over batch, and time and state of a decode step over context.

    Times are those of the clock, but on a CPU those of the process on all cores: other programs disturb them less.

    Args:
      report: what `measure` and `environment` gave.
      path: of the PNG file.
    """
    from matplotlib.figure import Figure  # half a second of import, paid only by those who draw

    on_cpu = report["platform"] == "cpu"
    second, seconds = ("CPU-second", "cpu_seconds") if on_cpu else ("second", "seconds")

    def speed(row: Row) -> float:
        return row["tokens"] / row[seconds]

    figure = Figure(figsize=(10, 8), layout="constrained")
    (prefill, batch), (context, memory) = figure.subplots(2, 2)
    figure.suptitle(_title(report))
    _curves(prefill, report["prefill"], "length", speed)
    _label(prefill, "prompt, tokens", f"prefill, tokens a {second}")
    _curves(batch, report["decode_by_batch"], "batch", speed)
    _label(batch, "batch size", f"decode without prompt, tokens a {second}")
    _curves(context, report["decode_by_context"], "context", lambda row: 1e3 * row[seconds] / row["steps"])
    _label(context, "context, tokens", f"decode step, {'CPU-ms' if on_cpu else 'ms'}")
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


def _label(axes: "Axes", x: str, y: str) -> None:
    """Logarithmic axes with plain numbers at powers of 2, and at 1, 2 and 5 times powers of 10."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set(xlabel=x, ylabel=y, yscale="log")
    axes.set_xscale("log", base=2)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.3)
