"""How a stack of layers folds into scanned periods."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

Layer = TypeVar("Layer", bound=Hashable)


class Fold(NamedTuple):
    """`period` repeated `repeats` times."""

    period: tuple
    repeats: int


def fold_layers(layers: Sequence[Layer]) -> tuple[Fold, ...]:
    """Folds layers into repeated periods, so that a deep model compiles as one period.

    From the front, the longest run of at least two equal periods becomes one fold (the shortest period wins a
    tie); layers that start no such run stand alone. Joined up again, the folds give back `layers`.
    """
    folds: list[Fold] = []
    start = 0
    while start < len(layers):
        fold = max(_folds_at(layers, start), key=lambda fold: (len(fold.period) * fold.repeats, -len(fold.period)))
        folds.append(fold)
        start += len(fold.period) * fold.repeats
    return tuple(folds)


def _folds_at(layers: Sequence[Layer], start: int) -> list[Fold]:
    rest = tuple(layers[start:])
    folds = [Fold(rest[:1], 1)]
    for width in range(1, len(rest) // 2 + 1):
        repeats = 1
        while rest[repeats * width : (repeats + 1) * width] == rest[:width]:
            repeats += 1
        if repeats > 1:
            folds.append(Fold(rest[:width], repeats))
    return folds
