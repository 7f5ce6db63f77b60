"""Times measured on an H100: the table and the picture of pallas_kernels/README.md, and the small picture of README.md.

Reads the certificate of the device (times of `python -m pallas_kernels.verify`) and the benchmark results of the same
device in `benchmarks/results`; a call that both have is taken from the benchmark.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.utils.figure import LEGEND_POINTS, TITLE_POINTS, add_legend, panels, plain_log_ticks, save
from pallas_kernels.compile_check import table as counts
from pallas_kernels.registry import load

CERTIFICATE = Path("pallas_kernels/certificates/nvidia-h100-80gb-hbm3-jax-0.11.json")
RESULTS, SLUG = Path("benchmarks/results"), "nvidia-h100-80gb-hbm3"
PICTURE = Path("docs/images/kernels-h100.png")
KERNEL = "mosaic_gpu"
NAMES = {
    "xla": "XLA",
    "cudnn": "cuDNN, window",
    "softmax": "cuDNN, full softmax",
    "fla_fused_chunk": "fla `fused_chunk_based`",
    "fla_parallel": "fla `parallel_based`",
    "fla_simple_gla": "fla `chunk_simple_gla`",
}
"""Other implementations than the kernel, as the table shows them."""
COLORS = {
    KERNEL: "#0072B2",
    "xla": "#999999",
    "cudnn": "#E69F00",
    "softmax": "#D55E00",
    "fla_fused_chunk": "#CC79A7",
    "fla_parallel": "#F0E442",
    "fla_simple_gla": "#009E73",
}
PASSES = {"forward": "forward", "forward_backward": "forward + backward"}


class Call(NamedTuple):
    """A workload and its times."""

    op: str
    kind: str
    shape: str
    milliseconds: dict[str, float]
    """Time of each implementation."""

    @property
    def speedups(self) -> dict[str, float]:
        """How many times as long other implementations take, by name."""
        return {name: ms / self.milliseconds[KERNEL] for name, ms in self.milliseconds.items() if name != KERNEL}


def measured() -> list[Call]:
    """Calls with a time of the kernel, by op, shape and pass."""
    calls: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in json.loads(CERTIFICATE.read_text())["times"]:
        if "ms" in row:
            op, kind, shape, implementation = row["call"].split()
            calls.setdefault((op, shape, kind), {})[implementation] = row["ms"]
    for result in results():
        for row in result["rows"]:
            if row["status"] == "ok":
                key = (row["op"], row["name"], row["kind"])
                calls.setdefault(key, {})[row["implementation"]] = row["ms"]
    return [Call(op, kind, shape, ms) for (op, shape, kind), ms in sorted(calls.items()) if KERNEL in ms]


def results() -> list[dict[str, Any]]:
    """The benchmark results of the device, in the order of their names."""
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"*-{SLUG}-*.json"))]


def bandwidth() -> float:
    """Bytes per second of a copy, the highest of the results."""
    return max(result["ceilings"]["bandwidth"] for result in results())


def table() -> str:
    """Microseconds of every call, its shares of the memory floor and of the bound, and the other implementations."""
    _draw(measured(), PICTURE)
    firsts = {call.op: call for call in reversed(measured()) if call.kind == "forward"}
    _draw(list(firsts.values())[::-1], PICTURE.with_stem(f"{PICTURE.stem}-small"), ("forward",), (5.6, 4.4))
    rate, known, rows = bandwidth(), counts.read(), []
    for call in measured():
        us = 1e3 * call.milliseconds[KERNEL]
        workload = next(
            w for group in load(call.op, "workloads").GROUPS.values() for w in group
            if (w.name, w.kind) == (call.shape, call.kind)
        )  # fmt: skip
        bound = known[counts.key(call.op, call.kind, call.shape, "h100")]["bound"]
        others = [
            f"{NAMES[name]} {1e3 * call.milliseconds[name]:,.0f} ({x:.1f}x)"
            for name, x in sorted(call.speedups.items(), key=lambda x: x[1])
        ]
        cells = [call.op, PASSES[call.kind], call.shape, f"**{us:,.0f}**", f"{1e6 * workload.bytes / rate / us:.0%}"]
        rows.append("| " + " | ".join([*cells, f"{bound / us:.0%}", ", ".join(others)]) + " |")
    report = json.loads(CERTIFICATE.read_text())
    where = f"{report['device']}, jax {report['jax']}, driver {report['hardware']['driver_version']}"
    commits = ", ".join(dict.fromkeys(result["commit"] for result in results()))
    head = "| op | pass | shape | us | of the memory floor | of the bound | others, us (times as long) |\n"
    head += "| --- | --- | --- | ---: | ---: | ---: | --- |"
    notes = f"({where}; a copy moves {rate / 1e12:.2f} TB/s; {results()[0]['date']}, commits {commits})"
    picture = "![Times of the kernels and of other implementations on an H100](../docs/images/kernels-h100.png)"
    return "\n".join([picture, "", head, *rows, "", notes])


def _draw(
    calls: list[Call], path: Path, kinds: Sequence[str] = tuple(PASSES), size: tuple[float, float] = (11, 4.6)
) -> None:
    """Bars of all implementations, one panel per pass, on a logarithmic axis."""
    figure, axes = panels(1, len(kinds), size=size, title="Microseconds on an H100, bfloat16")
    end = 2.5e3 * max(ms for call in calls for ms in call.milliseconds.values())
    for panel, kind in zip(axes[0], kinds, strict=True):
        place, ticks = 0.0, []
        for call in (x for x in calls if x.kind == kind):
            bars = sorted(call.milliseconds.items(), key=lambda x: x[1])
            shape = call.shape.split("_", 3)[-1].replace("t8192", "k16") if call.shape.startswith("b4_") else call.shape
            ticks.append((place + (len(bars) - 1) / 2, f"{call.op.replace('_', ' ')}\n{shape}"))
            for name, ms in bars:
                label = "our kernel" if name == KERNEL else NAMES[name].replace("`", "")
                panel.barh(place, 1e3 * ms, color=COLORS[name], label=label)
                panel.text(1e3 * ms * 1.06, place, f"{1e3 * ms:,.0f}", va="center", fontsize=LEGEND_POINTS - 1)
                place += 1
            place += 0.8
        panel.set(xscale="log", xlim=(50, end), axisbelow=True, title=PASSES[kind], xlabel="microseconds")
        panel.title.set_fontsize(TITLE_POINTS)
        panel.set_yticks([y for y, _ in ticks], [text for _, text in ticks], fontsize=LEGEND_POINTS)
        panel.invert_yaxis()
        plain_log_ticks(panel, "x", [us for us in (100, 1_000, 10_000, 100_000) if us < end])
    add_legend(figure)
    save(figure, path)
