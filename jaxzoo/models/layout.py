"""Folding of a stack of layers into scanned periods."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

Layer = TypeVar("Layer")


class Fold(NamedTuple):
    """Equal periods of consecutive layers."""

    periods: tuple[tuple[Any, ...], ...]

    @property
    def period(self) -> tuple[Any, ...]:
        return self.periods[0]

    @property
    def repeats(self) -> int:
        return len(self.periods)


def fold_layers(layers: Sequence[Layer], keys: Sequence[Hashable] | None = None) -> tuple[Fold, ...]:
    """Folds layers into repeated periods, so that a deep model compiles as one period; joined, the folds give back
    `layers`. From the front, the longest run of at least two equal periods becomes one fold (the shortest period wins a
    tie); other layers stand alone. `keys` are equal for layers that can be scanned together; None: the layers
    themselves. Linear time per run."""
    folds: list[Fold] = []
    start, keys = 0, layers if keys is None else keys
    while start < len(layers):
        rest = keys[start:]
        runs = [(width, length // width + 1) for width, length in enumerate(_repetitions(rest)) if length >= width > 0]
        width, repeats = max(runs, key=lambda run: (run[0] * run[1], -run[0]), default=(1, 1))
        ends = range(start + width, start + width * repeats + 1, width)
        folds.append(Fold(tuple(tuple(layers[end - width : end]) for end in ends)))
        start += width * repeats
    return tuple(folds)


def _repetitions(items: Sequence[Hashable]) -> list[int]:
    """Z function (Gusfield 1997, sec. 1.4): for every place, the number of items from there on that equal those from
    the front, in linear time. `[first, end)` is the match found so far that reaches furthest."""
    lengths = [0] * len(items)
    first = end = 0
    for place in range(1, len(items)):
        length = min(lengths[place - first], end - place) if place < end else 0
        while place + length < len(items) and items[length] == items[place + length]:
            length += 1
        lengths[place] = length
        if place + length > end:
            first, end = place, place + length
    return lengths
