"""Drawings of a mixer's page as inline SVG, in the colours of the page: its state, and how it learns MQAR."""

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.subjects import in_model
from jaxzoo.mixers import Mixer, MixerConfig

RESULTS = Path(__file__).parents[1] / "experiments/results/mqar_gallery/overnight/results.jsonl"
STEPS = 2_500
"""Training steps of the gallery."""
TEXT, BOX_HEIGHT = 13, 84
"""Height of the letters and of the largest box, in pixels."""
ACCENT = "var(--md-accent-fg-color, #1f77b4)"


class StateArray(NamedTuple):
    """One array of a state after `tokens` tokens, batch axis left out."""

    name: str
    shape: tuple[int, ...]
    bytes: int
    grows: bool
    """Whether a longer context makes it larger."""


def state_arrays(config: MixerConfig, width: int, tokens: int) -> list[StateArray]:
    """The arrays of a mixer's state, from shapes alone."""

    def leaves(n: int) -> list:
        config_of = in_model(config, width, n)
        mixer: Mixer = nnx.eval_shape(lambda: config_of.build(rngs=nnx.Rngs(0)))
        return jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: mixer.init_state(1, capacity=n)))

    found = zip(leaves(tokens), leaves(2 * tokens), strict=True)
    return [
        StateArray(
            jax.tree_util.keystr(path)[1:],
            leaf.shape[1:],
            math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize,
            math.prod(longer.shape) > math.prod(leaf.shape),
        )
        for (path, leaf), (_, longer) in found
    ]


def draw_state(arrays: Sequence[StateArray]) -> str:
    """A box per array of two axes or more, in proportion to its bytes; single numbers and vectors as bars.

    Boxes with a dashed right edge grow with the tokens read.
    """
    largest = max(array.bytes for array in arrays)
    parts, x, text_y = [], 8.0, BOX_HEIGHT + 20
    for array in arrays:
        side = BOX_HEIGHT * math.sqrt(array.bytes / largest)
        box_width, box_height = (side, side) if len(array.shape) > 1 else (max(side, 6), 6)
        label = f"{array.name}  {' x '.join(map(str, array.shape)) or '1'}"
        top = BOX_HEIGHT + 4 - box_height
        parts.append(
            f'<rect x="{x:.0f}" y="{top:.1f}" width="{box_width:.1f}" height="{box_height:.1f}" fill="{ACCENT}" '
            f'fill-opacity="0.35" stroke="{ACCENT}"{_dashes(array)}/>'
        )
        if array.grows:
            parts.append(_text(x + box_width + 4, top + box_height / 2, "→ grows"))
        parts += [_text(x, text_y, label), _text(x, text_y + 16, f"{array.bytes:,} bytes")]
        x += max(7.2 * max(len(label), 12), box_width + 60 * array.grows) + 14
    return _svg(x, text_y + 26, parts, f"State: {', '.join(array.name for array in arrays)}")


def draw_learning(name: str) -> str:
    """Validation accuracy over the steps on MQAR, against all other mixers in grey; "" without a kept run."""
    best = _best_runs()
    if name not in best:
        return ""
    curves = {mixer: run["curve"]["valid"] for mixer, run in best.items()}
    left, top, width, height = 40, 10, 360, 150
    lines = [points for mixer, points in curves.items() if mixer != name]
    parts = [_line(points, left, top, width, height, 'stroke="currentColor" stroke-opacity="0.15"') for points in lines]
    parts.append(_line(curves[name], left, top, width, height, f'stroke="{ACCENT}" stroke-width="3"'))
    y = top + height * (1 - best[name]["guess"]["valid/accuracy"])
    parts += [
        f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="currentColor" stroke-dasharray="2 3"/>',
        _text(left + 4, y - 5, "guessing"),
        _text(left + width + 6, top + height * (1 - curves[name][-1][1]), name),
    ]
    parts += [_text(4, top + height * (1 - value) + 4, f"{value:g}") for value in (0, 0.5, 1)]
    parts += [_text(left + width * step / STEPS - 10, top + height + 18, f"{step}") for step in (0, STEPS // 2, STEPS)]
    parts.append(_text(left + width / 2 - 30, top + height + 34, "steps"))
    return _svg(left + width + 8 * len(name) + 70, top + height + 44, parts, f"Accuracy of {name} on MQAR by steps")


def _best_runs() -> dict[str, dict]:
    """Row of each mixer's best run at the gallery's task."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    finished = [row for row in rows if row["status"] == "finished"]
    return {row["point"]["mixer"]: row for row in sorted(finished, key=lambda row: row["metrics"]["valid/accuracy"])}


def _line(points: Sequence[tuple[float, float]], left: int, top: int, width: int, height: int, style: str) -> str:
    places = " ".join(f"{left + width * x / STEPS:.1f},{top + height * (1 - y):.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" {style}/>'


def _dashes(array: StateArray) -> str:
    return ' stroke-dasharray="5 4"' if array.grows else ""


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{TEXT}" fill="currentColor">{html.escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """An inline picture that shrinks where the page is narrower; on one line, as Markdown wants it."""
    size = f'width="{width:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: 100%; height: auto"'
    return f'<div><svg {size} role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg></div>'
