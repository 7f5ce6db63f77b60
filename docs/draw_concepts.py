"""Draws the pictures of README.md and docs/concepts.md: `python -m docs.draw_concepts`."""

import argparse
import re
from pathlib import Path
from typing import Any

from benchmarks.subjects import family, in_model
from jaxzoo.mixers import MIXERS, state_bytes
from jaxzoo.mixers.names import title
from jaxzoo.utils.figure import PALETTE, add_legend, panels, plain_log_ticks, save, series_style

IMAGES = Path(__file__).parent / "images"
RECALL = Path(__file__).parents[1] / "experiments/results/mqar_gallery/overnight/table.md"
N_PAIRS = 8
NAMED = {
    "attention": (-8, -14),
    "gated_delta_net": (-8, 8),
    "gated_linear_attention": (8, -10),
    "hgrn2": (10, -6),
    "lin_cat": (8, -2),
    "linear_attention": (8, -12),
    "mamba2": (-34, -15),
    "rwkv7_time_mix": (-40, 6),
    "taylor_linear_attention": (0, 8),
}
"""Mixers of the first picture, and where their names stand next to their marks, in points."""
FAMILIES = ("attention", "linear", "conv", "ssm")
SHOWN = ("attention", "sliding_window_attention", "taylor_linear_attention", "delta_net", "mamba", "gated_short_conv")
TOKENS = (16, 64, 256, 1024, 4096, 16384)
WIDTH = 64


def main() -> None:
    """Writes the pictures."""
    save(recall(), IMAGES / "recall-by-state.png")
    save(forms(), IMAGES / "concepts-forms.png")
    save(states(), IMAGES / "concepts-state.png")


def recall() -> Any:
    """Pairs recalled against the bytes of the state, of kept runs, and the frontier."""
    row = re.compile(r"^\| (\w+) \| \d+ \| ([\d.]+) [^|]*(?:\|[^|]*){3}\| ([\d,]+) \|", re.MULTILINE)
    found = {name: (int(n.replace(",", "")), N_PAIRS * float(y)) for name, y, n in row.findall(RECALL.read_text())}
    points = {name: found[name] for name in NAMED}
    figure, ((axes,),) = panels(1, 1, size=(5.6, 3.6), title="Recall against memory: 8 key-value pairs, 64 tokens")
    best = [(x, y) for x, y in points.values() if all(y > other for size, other in points.values() if size < x)]
    axes.plot(*zip(*sorted(best), strict=True), color="#777777", linewidth=1.2, zorder=1, label="best at this size")
    for name, point in points.items():
        kind = list(FAMILIES).index(family(MIXERS[name]()))
        axes.scatter(*point, s=36, zorder=2, **PALETTE[kind]._asdict())
        words = title(name).replace("Taylor linear attention", "Taylor (Based)")
        axes.annotate(words, point, NAMED[name], textcoords="offset points", fontsize=9)
    axes.set(xlabel="state of a sequence in a layer with its short convolution, bytes", ylabel="pairs recalled")
    axes.set(ylim=(7.6, 8.07))
    plain_log_ticks(axes, "x", (2_000, 5_000, 10_000, 20_000, 50_000, 100_000))
    axes.legend(loc="lower right", frameon=False)
    return figure


def states() -> Any:
    """Bytes of the state of one sequence against the tokens read, from the arrays."""
    figure, ((axes,),) = panels(1, 1, size=(6, 3.6), title=f"State of one sequence, model width {WIDTH}, float32")
    for i, name in enumerate(SHOWN):
        sizes = []
        for tokens in TOKENS:
            mixer = in_model(MIXERS[name](), WIDTH, tokens).build(rngs=_rngs())
            sizes.append(state_bytes(mixer, capacity=tokens))
        axes.plot(TOKENS, sizes, label=title(name), **series_style(i))
    axes.set(xlabel="tokens read", ylabel="bytes")
    plain_log_ticks(axes, "x", TOKENS)
    plain_log_ticks(axes, "y")
    add_legend(figure)
    return figure


def forms() -> Any:
    """The three forms of a mixer: tokens as squares, states as circles."""
    figure, grid = panels(1, 3, size=(9, 1.6), title="Three forms, the same numbers")
    blue, red = PALETTE[0].color, PALETTE[1].color
    titles = ("y = mixer(x)", "prefill(x, state)", "step(x_t, state)")
    for axes, words, n_tokens in zip(grid[0], titles, (6, 4, 1), strict=True):
        has_state = n_tokens < 6
        axes.set(xlim=(-2.2, 7.5), ylim=(-0.4, 2.4), aspect="equal")
        axes.set_title(words, fontsize=10, family="monospace")
        axes.axis("off")
        start = (6 - n_tokens) / 2
        axes.add_patch(_box(start - 0.2, n_tokens + 0.2))
        for i in range(n_tokens):
            for y in (0, 2):
                axes.plot(start + i + 0.4, y, "s", color=blue, markersize=9, alpha=1 if y else 0.5)
        for x, toward in ((start - 1.2, 1), (start + n_tokens + 1.0, -1)) if has_state else ():
            axes.plot(x, 1, "o", color=red, markersize=10)
            axes.annotate("", (x + 0.9 * toward, 1), (x + 0.3 * toward, 1), arrowprops=_arrow(toward > 0))
        axes.text(start - 1.9, 0, "x", va="center")
        axes.text(start - 1.9, 2, "y", va="center")
    return figure


def _box(left: float, width: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, 0.5), width, 1.0, facecolor="#EEEEEE", edgecolor="#777777")


def _arrow(forward: bool) -> dict[str, str]:
    return {"arrowstyle": "->" if forward else "<-", "color": "#333333"}


def _rngs() -> Any:
    from flax import nnx

    return nnx.Rngs(0)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()  # there are no options
    main()
