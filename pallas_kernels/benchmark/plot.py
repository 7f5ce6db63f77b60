"""Plots of a result, one PNG for each group: curves where one size varies, a dot for each shape elsewhere.

matplotlib is imported where it draws: a machine that lacks it writes JSON, and `--render` draws later.
"""

from pathlib import Path
from typing import Any

from pallas_kernels.benchmark.report import KIND, groups

LABELS = {"b": "batch", "t": "tokens", "window": "window (tokens)", "h": "heads"}
STYLES = {
    "xla": ("#0072B2", "o"),
    "mosaic_gpu": ("#D55E00", "s"),
    "mosaic_tpu": ("#D55E00", "s"),
    "splash_tpu": ("#56B4E9", "P"),
    "triton": ("#000000", "<"),
    "naive": ("#CC79A7", "^"),
    "reference": ("#E69F00", "v"),
    "softmax": ("#009E73", "D"),
    "cudnn": ("#009E73", "D"),
    "jax_nn": ("#009E73", "D"),
    "fla_fused_chunk": ("#56B4E9", "P"),
    "fla_parallel": ("#8A6D00", "X"),
    "torch_flex": ("#56B4E9", "P"),
    "torch_sdpa": ("#8A6D00", "X"),
    "flash_attn": ("#CC79A7", "^"),
}
"""Colours of Okabe and Ito with a marker each; "auto" is not drawn, being one of the others."""
FLOOR = {"color": "#333333", "linestyle": (0, (4, 3)), "linewidth": 1.2, "label": "floor"}


def draw(result: dict, stem: Path) -> list[Path]:
    """Writes `<stem>-<group>.png` for every group that has a time; returns the files.

    Raises:
      ModuleNotFoundError: matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    paths = []
    for group in groups(result):
        rows = [row for row in result["rows"] if group in row["groups"] and row["status"] == "ok"]
        rows = [row for row in rows if row["implementation"] != "auto"]
        if not rows:
            continue
        axis = _varying(rows)
        figure = _dots(rows) if axis is None else _curves(rows, axis, memory=result["platform"] == "cpu")
        figure.suptitle(f"{result['op']}, {group}: {result['device']}, {result['date']}", fontsize=10)
        path = stem.with_name(f"{stem.name}-{group}.png")
        figure.savefig(path, dpi=150)
        paths.append(path)
    return paths


def _varying(rows: list[dict]) -> str | None:
    """The one size that takes several values, or None."""
    names = [name for name in rows[0]["sizes"] if len({row["sizes"][name] for row in rows}) > 1]
    return names[0] if len(names) == 1 else None


def _curves(rows: list[dict], axis: str, *, memory: bool):
    from matplotlib.figure import Figure

    kinds = [kind for kind in KIND if any(row["kind"] == kind for row in rows)]
    height = 2 if memory else 1
    figure = Figure(figsize=(2.2 + 3.6 * len(kinds), 0.7 + 3.0 * height), layout="constrained")
    panels = figure.subplots(height, len(kinds), squeeze=False, sharex=True, sharey="row")
    fixed = ", ".join(f"{name} {value}" for name, value in rows[0]["sizes"].items() if name != axis)
    for column, kind in enumerate(kinds):
        mine = [row for row in rows if row["kind"] == kind]
        ticks = sorted({row["sizes"][axis] for row in mine})
        panels[0, column].set_title(KIND[kind], fontsize=10)
        _curve(panels[0, column], mine, axis, "ms", 1.0)
        if memory:
            _curve(panels[1, column], mine, axis, "temp_bytes", 2.0**-20)
        for panel in panels[:, column]:
            panel.set_xscale("log", base=2)
            if panel.get_lines():
                panel.set_yscale("log")
            panel.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8, rotation=30 if len(ticks) > 5 else 0)
            panel.grid(visible=True, which="major", color="#DDDDDD", linewidth=0.6)
        panels[-1, column].set_xlabel(LABELS.get(axis, axis))
    panels[0, 0].set_ylabel("ms a call")
    if memory:
        panels[1, 0].set_ylabel("temporary MiB")
    figure.supxlabel(fixed, fontsize=8, color="#555555")
    _legend(figure, panels)
    return figure


def _curve(panel, rows: list[dict], axis: str, value: str, unit: float) -> None:
    """`value` of every implementation against `axis`; zeros have no logarithm and are left out."""
    for name in dict.fromkeys(row["implementation"] for row in rows):
        mine = sorted((row for row in rows if row["implementation"] == name), key=lambda row: row["sizes"][axis])
        mine = [row for row in mine if row.get(value)]
        if not mine:
            continue
        x = [row["sizes"][axis] for row in mine]
        color, marker = _style(name)
        panel.plot(x, [unit * row[value] for row in mine], color=color, marker=marker, markersize=5, label=name)
        if value == "ms":
            low, high = ([row[end] for row in mine] for end in ("ms_p10", "ms_p90"))
            panel.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    if value == "ms":
        floors = sorted({(row["sizes"][axis], row["floor_ms"]) for row in rows})
        panel.plot(*zip(*floors, strict=True), **FLOOR)


def _dots(rows: list[dict]):
    from matplotlib.figure import Figure

    kinds = [kind for kind in KIND if any(row["kind"] == kind for row in rows)]
    shapes = list(dict.fromkeys(row["name"] for row in rows))
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    size = (1.8 + 3.6 * len(kinds), 0.8 + (0.75 + 0.25 * len(names)) * len(shapes))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(shapes), len(kinds), squeeze=False)
    for i, shape in enumerate(shapes):
        for j, kind in enumerate(kinds):
            panels[i, j].set_title(f"{shape}, {KIND[kind]}", fontsize=9)
            _dot(panels[i, j], [row for row in rows if (row["name"], row["kind"]) == (shape, kind)])
    for panel in panels[-1]:
        panel.set_xlabel("ms a call")
    _legend(figure, panels)
    return figure


def _dot(panel, rows: list[dict]) -> None:
    """A line of the panel for each implementation: median, p10 to p90, and the number."""
    panel.set_xscale("log")
    panel.grid(visible=True, axis="x", which="major", color="#DDDDDD", linewidth=0.6)
    for i, row in enumerate(rows):
        color, marker = _style(row["implementation"])
        panel.plot([row["ms_p10"], row["ms_p90"]], [i, i], color=color, linewidth=2)
        panel.plot(row["ms"], i, color=color, marker=marker, markersize=6)
        text = f"{row['ms']:,.0f}" if row["ms"] >= 100 else f"{row['ms']:.3g}"
        panel.annotate(text, (row["ms_p90"], i), xytext=(6, 0), textcoords="offset points", fontsize=8, va="center")
    panel.set_yticks(range(len(rows)), [row["implementation"] for row in rows], fontsize=8)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    if rows:
        ends = [rows[0]["floor_ms"], *(row["ms_p10"] for row in rows), *(row["ms_p90"] for row in rows)]
        panel.set_xlim(min(ends) / 1.6, max(ends) * (max(ends) / min(ends)) ** 0.2 * 1.6)
        panel.axvline(rows[0]["floor_ms"], **FLOOR)


def _legend(figure, panels) -> None:
    found: dict[str, Any] = {}
    for panel in panels.flat:
        handles, labels = panel.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend(found.values(), found.keys(), loc="outside right upper", fontsize=8, frameon=False)


def _style(name: str) -> tuple[str, str]:
    return STYLES.get(name, ("#777777", "."))
