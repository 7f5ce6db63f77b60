"""Windows of text on which two models disagree, token by token, after Zoology, App. D.1.1.

An example is a validation window whose AR hits have the largest total gap: the nats of a run less those of the
baseline. Tokens around its largest gaps, and around the earlier occurrences that could be recalled, are shown. A hit
has its gap in brackets. Colours: orange where the run is worse, blue where the baseline is, stronger with the gap.

Deviation: the paper colours tokens by whether each model's likeliest token is right, and prints both; here it is the
difference of the losses.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.text import Text

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.evals.recall_slices import RecallSums, target_repeats
from jaxzoo.utils.array_typing import Array
from jaxzoo.utils.figure import PALETTE, panels, save
from jaxzoo.utils.screen import printable

SHOWN_HITS = 4
"""Hits of a window that are shown."""
BEFORE, AFTER = 12, 3
"""Tokens shown before and after each of them."""
STRONGEST = 3.0
"""Gap in nats with the strongest colour."""
COLUMNS = 124
"""Characters per line of the picture."""


class ScoredWindow(NamedTuple):
    """Targets of a validation window, without those that are not scored."""

    targets: Int[np.ndarray, "t"]
    nats: Float[np.ndarray, "t"]
    is_hit: Bool[np.ndarray, "t"]
    distance: Int[np.ndarray, "t"]
    """Tokens since the bigram stood last; 0: it is not repeated."""


class ShownToken(NamedTuple):
    """Token of an example, or tokens that are left out."""

    text: str
    gap: float
    """Loss of the run minus loss of the baseline, in nats; 0 for tokens that are left out."""
    is_hit: bool

    @property
    def words(self) -> str:
        return f"[{self.text} {self.gap:+.1f}]" if self.is_hit else self.text

    @property
    def color(self) -> str:
        """Colour of the background, as `#RRGGBB`."""
        share = min(abs(self.gap) / STRONGEST, 1.0)
        full = bytes.fromhex(PALETTE[1 if self.gap > 0 else 0].color[1:])
        return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in full)


def windows(batch: Batch, nats: Float[np.ndarray | Array, "b t"], sums: RecallSums) -> list[ScoredWindow]:
    """Returns the windows of a batch, without rows of padding; `sums` knows which bigrams are rare."""
    tokens, targets, values = (np.asarray(x) for x in (batch.tokens, batch.targets, nats))
    segment_ids = None if batch.segment_ids is None else np.asarray(batch.segment_ids)
    labelled = targets != UNLABELLED
    is_hit = np.zeros(targets.shape, bool)
    is_hit[labelled] = sums.is_hit(batch)
    distance = target_repeats(tokens, targets, 2, segment_ids)
    return [
        ScoredWindow(*(x[row][labelled[row]] for x in (targets, values, is_hit, distance)))
        for row in np.flatnonzero(labelled.any(axis=1))
    ]


def examples(
    run: Sequence[ScoredWindow],
    baseline: Sequence[ScoredWindow],
    count: int,
    decode: Callable[[Int[np.ndarray, "1"]], str],
) -> list[list[ShownToken]]:
    """Returns the pieces of the windows with the largest gap, the largest one first; windows without a hit are left
    out."""
    gaps = [ours.nats.astype(float) - theirs.nats for ours, theirs in zip(run, baseline, strict=True)]
    total = [float(gap[window.is_hit].sum()) for gap, window in zip(gaps, run, strict=True)]
    order = sorted((i for i, window in enumerate(run) if window.is_hit.any()), key=lambda i: -total[i])
    return [_pieces(run[i], gaps[i], decode) for i in order[:count]]


def _pieces(
    window: ScoredWindow, gap: Float[np.ndarray, "t"], decode: Callable[[Int[np.ndarray, "1"]], str]
) -> list[ShownToken]:
    shown = np.zeros(len(gap), bool)
    for i in sorted(np.flatnonzero(window.is_hit), key=lambda i: -gap[i])[:SHOWN_HITS]:
        for place, after in ((i, AFTER), (i - window.distance[i], 0)):
            shown[max(place - BEFORE, 0) : max(place + after + 1, 0)] = True
    pieces = []
    i = 0
    while i < len(gap):
        if shown[i]:
            text = printable(decode(window.targets[i : i + 1])).replace("\n", "\\n")
            pieces.append(ShownToken(text, float(gap[i]), bool(window.is_hit[i])))
            i += 1
            continue
        hidden = int(np.argmax(np.append(shown[i:], True)))
        pieces.append(ShownToken(f" ...({hidden} tokens)... ", 0.0, False))
        i += hidden
    return pieces


def colored(found: Sequence[Sequence[ShownToken]], run: str, baseline: str) -> Text:
    """Makes the text of the terminal; its `plain` is the text without colours."""
    text = Text(f"Largest gaps of {run} to {baseline} on AR hits, in nats\n")
    for pieces in found:
        text.append("\n")
        for piece in pieces:
            style = f"black on {piece.color}" if piece.gap else ""
            text.append(piece.words, style=f"{style} bold underline" if piece.is_hit else style)
        text.append("\n")
    return text


def draw_examples(found: Sequence[Sequence[ShownToken]], path: Path, *, run: str, baseline: str) -> None:
    """Draws the examples as text on colours. Raises `OSError` if the file cannot be written."""
    placed = []
    row = 0
    for pieces in found:
        column = 0
        for piece in pieces:
            if column and column + len(piece.words) > COLUMNS:
                row, column = row + 1, 0
            placed.append((column, row, piece))
            column += len(piece.words)
        row += 2
    title = f"Largest gaps of {run} to {baseline} on AR hits (orange: {run} is worse, by nats)"
    figure, ((axes,),) = panels(1, 1, size=(8.0, 0.6 + 0.18 * row), title=title)
    for column, line, piece in placed:
        box = {"facecolor": piece.color, "edgecolor": "none", "pad": 0.6}
        weight = "bold" if piece.is_hit else "normal"
        words = piece.words.replace("$", r"\$")
        axes.text(column, line, words, family="monospace", fontsize=7, weight=weight, va="center", bbox=box)
    axes.set(xlim=(0, COLUMNS), ylim=(row, -1))
    axes.set_axis_off()
    save(figure, path)
