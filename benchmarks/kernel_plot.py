"""Plots of kernel benchmarks: `python -m benchmarks.kernel_plot RESULT.json ...` writes PNG files next to each result.

One picture per group of workloads: curves where one size varies, a dot for each shape elsewhere.
"""

import sys
from pathlib import Path

from jaxzoo.utils.figure import (
    TITLE_POINTS,
    UNKNOWN,
    add_legend,
    bound_style,
    panels,
    plain_log_ticks,
    save,
    series_style,
)
from pallas_kernels.benchmark.report import KIND, groups, load

LABELS = {"b": "batch", "t": "tokens", "window": "window (tokens)", "h": "heads"}
SERIES = {
    "xla": 0,
    "mosaic_gpu": 1,
    "mosaic_tpu": 1,
    "softmax": 2,
    "cudnn": 2,
    "jax_nn": 2,
    "naive": 3,
    "flash_attn": 3,
    "reference": 4,
    "splash_tpu": 5,
    "fla_fused_chunk": 5,
    "torch_flex": 5,
    "fla_gla": 5,
    "fla_parallel": 6,
    "fla_simple_gla": 5,
    "torch_sdpa": 6,
    "triton": 7,
}
"""Index in the palette, the same in all pictures; "auto" is not drawn, since it is one of the others."""
FLOOR = {**bound_style(), "label": "floor"}


def main(argv: list[str] | None = None) -> None:
    files = sys.argv[1:] if argv is None else argv
    if not files:
        raise SystemExit("benchmarks.kernel_plot: no RESULT.json is given")
    for name in files:
        try:
            for picture in draw(load(Path(name)), Path(name).with_suffix("")):
                print(picture)
        except (OSError, ValueError) as error:
            raise SystemExit(f"benchmarks.kernel_plot: {error}") from None


def draw(result: dict, stem: Path) -> list[Path]:
    """Writes `<stem>-<group>.png` for each group with a time; returns the files."""
    paths = []
    for group in groups(result):
        rows = [row for row in result["rows"] if group in row["groups"] and row["status"] == "ok"]
        rows = [row for row in rows if row["implementation"] != "auto"]
        if not rows:
            continue
        axis = _varying(rows)
        title = f"{result['op']}, {group}: {result['device']}, {result['date']}"
        memory = result["platform"] == "cpu"
        figure = _dots(rows, title) if axis is None else _curves(rows, axis, title, memory=memory)
        path = stem.with_name(f"{stem.name}-{group}.png")
        save(figure, path)
        paths.append(path)
    return paths


def _varying(rows: list[dict]) -> str | None:
    """Returns the one size that takes several numeric values, or None."""
    values = {name: {row["sizes"][name] for row in rows} for name in rows[0]["sizes"]}
    names = [name for name, found in values.items() if len(found) > 1]
    return names[0] if len(names) == 1 and not any(isinstance(x, str) for x in values[names[0]]) else None


def _curves(rows: list[dict], axis: str, title: str, *, memory: bool):
    kinds = [kind for kind in KIND if any(row["kind"] == kind for row in rows)]
    height = 2 if memory else 1
    size = (1.0 + 3.6 * len(kinds), 1.4 + 2.8 * height)
    fixed = ", ".join(f"{name} {value}" for name, value in rows[0]["sizes"].items() if name != axis)
    figure, axes = panels(height, len(kinds), size=size, title=f"{title}\n{fixed}", sharex=True, sharey="row")
    for column, kind in enumerate(kinds):
        mine = [row for row in rows if row["kind"] == kind]
        axes[0, column].set_title(KIND[kind], fontsize=TITLE_POINTS)
        _curve(axes[0, column], mine, axis, "ms", 1.0)
        if memory:
            _curve(axes[1, column], mine, axis, "temp_bytes", 2.0**-20)
        for panel in axes[:, column]:
            plain_log_ticks(panel, "x", (row["sizes"][axis] for row in mine))
            if panel.get_lines():
                plain_log_ticks(panel, "y")
        axes[-1, column].set_xlabel(LABELS.get(axis, axis))
    axes[0, 0].set_ylabel("ms per call")
    if memory:
        axes[1, 0].set_ylabel("temporary MiB")
    add_legend(figure)
    return figure


def _curve(panel, rows: list[dict], axis: str, value: str, unit: float) -> None:
    """Plots `value` of each implementation against `axis`, without zeros, which have no logarithm."""
    for name in dict.fromkeys(row["implementation"] for row in rows):
        mine = sorted((row for row in rows if row["implementation"] == name), key=lambda row: row["sizes"][axis])
        mine = [row for row in mine if row.get(value)]
        if not mine:
            continue
        x = [row["sizes"][axis] for row in mine]
        style = _style(name)
        panel.plot(x, [unit * row[value] for row in mine], **style, label=name)
        if value == "ms":
            low, high = ([row[end] for row in mine] for end in ("ms_p10", "ms_p90"))
            panel.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    if value == "ms":
        floors = sorted({(row["sizes"][axis], row["floor_ms"]) for row in rows})
        panel.plot(*zip(*floors, strict=True), **FLOOR)


def _dots(rows: list[dict], title: str):
    kinds = [kind for kind in KIND if any(row["kind"] == kind for row in rows)]
    shapes = list(dict.fromkeys(row["name"] for row in rows))
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    size = (1.8 + 3.6 * len(kinds), 1.0 + (0.75 + 0.25 * len(names)) * len(shapes))
    figure, axes = panels(len(shapes), len(kinds), size=size, title=title)
    for i, shape in enumerate(shapes):
        for j, kind in enumerate(kinds):
            axes[i, j].set_title(f"{shape}, {KIND[kind]}", fontsize=TITLE_POINTS)
            _dot(axes[i, j], [row for row in rows if (row["name"], row["kind"]) == (shape, kind)])
    for panel in axes[-1]:
        panel.set_xlabel("ms per call")
    add_legend(figure)
    return figure


def _dot(panel, rows: list[dict]) -> None:
    """Draws one line per implementation: median, p10 to p90, and the number."""
    panel.grid(visible=False, axis="y")
    for i, row in enumerate(rows):
        style = _style(row["implementation"])
        panel.plot([row["ms_p10"], row["ms_p90"]], [i, i], color=style["color"], linewidth=2)
        panel.plot(row["ms"], i, **style)
        text = f"{row['ms']:,.0f}" if row["ms"] >= 100 else f"{row['ms']:.3g}"
        panel.annotate(text, (row["ms_p90"], i), xytext=(6, 0), textcoords="offset points", fontsize=8, va="center")
    panel.set_yticks(range(len(rows)), [row["implementation"] for row in rows], fontsize=8)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    if rows:
        ends = [rows[0]["floor_ms"], *(row["ms_p10"] for row in rows), *(row["ms_p90"] for row in rows)]
        panel.set_xlim(min(ends) / 1.6, max(ends) * (max(ends) / min(ends)) ** 0.2 * 1.6)
        panel.axvline(rows[0]["floor_ms"], **FLOOR)
    plain_log_ticks(panel, "x")


def _style(name: str) -> dict:
    return series_style(SERIES[name]) if name in SERIES else series_style(0) | UNKNOWN._asdict()


if __name__ == "__main__":
    main()
