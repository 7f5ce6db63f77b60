"""Draws the pictures of docs/concepts.md: `python -m docs.draw_concepts`."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.subjects import in_model
from jaxzoo.mixers import MIXERS, state_bytes
from jaxzoo.utils.figure import PALETTE, add_legend, panels, plain_log_ticks, save, series_style

IMAGES = Path(__file__).parent / "images"
SHOWN = ("attention", "sliding_window_attention", "taylor_linear_attention", "delta_net", "mamba", "gated_short_conv")
TOKENS = (16, 64, 256, 1024, 4096, 16384)
WIDTH = 64


def main() -> None:
    """Writes both pictures."""
    save(forms(), IMAGES / "concepts-forms.png")
    save(states(), IMAGES / "concepts-state.png")


def states() -> Any:
    """Bytes of the state of one sequence against the tokens read, from the arrays."""
    figure, ((axes,),) = panels(1, 1, size=(6, 3.6), title=f"State of one sequence, model width {WIDTH}, float32")
    for i, name in enumerate(SHOWN):
        sizes = []
        for tokens in TOKENS:
            mixer = in_model(MIXERS[name](), WIDTH, tokens).build(rngs=_rngs())
            sizes.append(state_bytes(mixer, capacity=tokens))
        axes.plot(TOKENS, sizes, label=name, **series_style(i))
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
    for axes, title, n_tokens in zip(grid[0], titles, (6, 4, 1), strict=True):
        has_state = n_tokens < 6
        axes.set(xlim=(-2.2, 7.5), ylim=(-0.4, 2.4), aspect="equal")
        axes.set_title(title, fontsize=10, family="monospace")
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
