"""The curves of the benchmark of generation as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxzoo.utils.figure import Axes, add_legend, panels, plain_log_ticks, save, series_style

Row = dict[str, Any]


def draw(report: dict[str, Any], path: Path) -> None:
    """Draws prefill speed over length, decode speed over batch, and time and state of a decode step over context. Times
    are wall times; on a CPU they are CPU times, which other programs disturb less."""
    on_cpu = report["platform"] == "cpu"
    second, seconds = ("CPU-second", "cpu_seconds") if on_cpu else ("second", "seconds")

    def speed(row: Row) -> float:
        return row["tokens"] / row[seconds]

    figure, ((prefill, batch), (context, memory)) = panels(2, 2, size=(10, 8), title=_title(report))
    _curves(prefill, report["prefill"], "length", speed)
    prefill.set(xlabel="prompt, tokens", ylabel=f"prefill, tokens per {second}")
    _curves(batch, report["decode_by_batch"], "batch", speed)
    batch.set(xlabel="batch size", ylabel=f"decode without prompt, tokens per {second}")
    _curves(context, report["decode_by_context"], "context", lambda row: 1e3 * row[seconds] / row["steps"])
    context.set(xlabel="context, tokens", ylabel=f"decode step, {'CPU ms' if on_cpu else 'ms'}")
    _curves(memory, report["decode_by_context"], "context", lambda row: row["state_bytes"] / 2**20)
    memory.set(xlabel="context, tokens", ylabel="state per sequence, MiB")
    add_legend(figure)
    save(figure, path)


def _title(report: dict[str, Any]) -> str:
    sizes = ", ".join(f"{model['model']} {model['parameters'] / 1e6:.1f}M" for model in report["models"])
    return f"{sizes}\n{report['device']}, jax {report['versions']['jax']}, {report['date']}"


def _curves(axes: Axes, rows: Sequence[Row], x: str, y: Callable[[Row], float]) -> None:
    """Draws one line per model; it ends where memory runs out."""
    for i, name in enumerate(dict.fromkeys(row["model"] for row in rows)):
        measured = [row for row in rows if row["model"] == name and "out_of_memory" not in row]
        axes.plot([row[x] for row in measured], [y(row) for row in measured], **series_style(i), label=name)
    plain_log_ticks(axes, "x", (row[x] for row in rows))
    plain_log_ticks(axes, "y")
