"""Families of models as tables: names and transforms of their tensors, and fields of their config.json."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxzoo.interop.fields import Fields
from jaxzoo.interop.transforms import SAME, Transform
from jaxzoo.models.blueprint import Blueprint, names_of
from jaxzoo.models.config import LanguageModelConfig


class Row(NamedTuple):
    """Tensors of theirs and the variables of ours that they are, by names with `{i}` for the number of a layer.

    Names of ours are those of a model that is not scanned: `layers.3.mixer.q_proj.kernel`.
    """

    theirs: str | tuple[str, ...]
    """One name, or several."""
    ours: str | tuple[str, ...]
    """Likewise."""
    transform: Transform = SAME
    """From theirs to ours, and back."""

    def at(self, **numbers: int) -> "Row":
        """The row of one layer."""
        theirs, ours = (tuple(name.format(**numbers) for name in _several(names)) for names in (self.theirs, self.ours))
        return Row(theirs, ours, self.transform)

    def move(self) -> "Move":
        """The row, of a concrete folder."""
        return Move(_several(self.theirs), _several(self.ours), self.transform)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: how its folders are read and written."""

    name: str
    """Name for `--family`."""
    matches: Callable[[Mapping[str, Any], Iterable[str]], bool]
    """Whether a config.json, and the names of tensors next to it, are of this family."""
    read: Callable[[Fields, Mapping[str, tuple[int, ...]]], LanguageModelConfig]
    """The model that a config.json, and the shapes of the tensors, describe."""
    write: Callable[[LanguageModelConfig], dict[str, Any]]
    """The config.json of a model; ValueError where the family has no such model."""
    rows: Callable[[LanguageModelConfig], Iterable[Row]]
    """All rows of a model, layers filled in."""
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Patterns of names, and what stands for them: prefixes that some folders have, names of older versions."""
    left_out: tuple[str, ...] = ()
    """Patterns of tensors that a model does not need: masks, tables that are computed, counters."""
    tied: tuple[str, str] | None = None
    """Names of embedding and head, which may both be there where they are tied."""


class Slot(NamedTuple):
    """Where a variable lies in a model whose repeated layers are stacked."""

    path: str
    """Name in the model, such as `stacks/0/blocks/1/mixer/q_proj/kernel`."""
    repeat: int | None
    """Index in the leading axis of repeats; None: there is no such axis."""
    shape: tuple[int, ...]
    """Shape, without that axis."""


class Move(NamedTuple):
    """One row of a concrete folder."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    transform: Transform


class Account(NamedTuple):
    """Account of every tensor of a folder."""

    moves: tuple[Move, ...]
    """Mapping of their tensors to ours."""
    left_out: tuple[str, ...]
    """Tensors that the model does not need."""

    def lines(self) -> Iterator[str]:
        """The account as text, a line per tensor."""
        for move in self.moves:
            yield f"{' '.join(move.theirs)} -> {' '.join(move.ours)} ({move.transform.name})"
        for name in self.left_out:
            yield f"{name} -> left out"


def slots(config: LanguageModelConfig, blueprint: Blueprint) -> dict[str, Slot]:
    """The place of every variable, by its name in a model that is not scanned.

    Raises:
      ValueError: the model holds buffers, which no family has.
    """
    if blueprint.shapes.buffers:
        raise ValueError(f"buffer {min(names_of(blueprint.shapes.buffers))} has no counterpart in other libraries")
    first, starts = 0, []
    for fold in config.folds:
        starts.append(first)
        first += len(fold.period) * fold.repeats
    found: dict[str, Slot] = {}
    for path, leaf in names_of(blueprint.shapes.params).items():
        inside = re.fullmatch(r"stacks/(\d+)/blocks/(\d+)/(.*)", path)
        if not inside:
            found[path.replace("/", ".")] = Slot(path, None, leaf.shape)
            continue
        stack, block, rest = int(inside[1]), int(inside[2]), inside[3].replace("/", ".")
        fold = config.folds[stack]
        for repeat in range(fold.repeats):
            layer = starts[stack] + repeat * len(fold.period) + block
            stacked = fold.repeats > 1
            shape = leaf.shape[1:] if stacked else leaf.shape
            found[f"layers.{layer}.{rest}"] = Slot(path, repeat if stacked else None, shape)
    return found


def account(
    family: Family, rows: Iterable[Row], tensors: Mapping[str, np.ndarray], slots: Mapping[str, Slot], where: str
) -> Account:
    """Accounts for every tensor and every variable.

    Args:
      family: the folder's.
      rows: those of its model.
      tensors: those of the folder, their common prefix left out.
      slots: the variables of the model.
      where: what errors call the folder.

    Raises:
      ValueError: a tensor is unknown, missing or of another shape; the message names the first, and how many more.
    """
    moves = tuple(row.move() for row in rows)
    known = {name for move in moves for name in move.theirs}
    problems = []
    for move in moves:
        shapes = [np.shape(x) for x in move.transform.write(*(_nothing(slots[name].shape) for name in move.ours))]
        for name, shape in zip(move.theirs, shapes, strict=True):
            if name not in tensors:
                problems.append(f"tensor {name} of shape {list(shape)} is missing")
            elif tensors[name].shape != shape:
                problems.append(
                    f"tensor {name} has shape {list(tensors[name].shape)}, and {list(shape)} by config.json"
                )
    left_out = []
    for name in tensors.keys() - known:
        if any(re.fullmatch(pattern, name) for pattern in family.left_out) or _is_tied_copy(family, name, tensors):
            left_out.append(name)
        else:
            problems.append(f"tensor {name} is no part of a {family.name} model with this config.json")
    written = {name for move in moves for name in move.ours}
    problems += [f"variable {name} of the model is in no tensor of the table" for name in slots.keys() - written]
    if problems:
        more = f" (and {len(problems) - 1} more such problems)" if len(problems) > 1 else ""
        raise ValueError(f"{where}: {sorted(problems)[0]}{more}")
    return Account(moves, tuple(sorted(left_out)))


def _is_tied_copy(family: Family, name: str, tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether a tensor is a tied head with the numbers of the embedding."""
    if family.tied is None or name != family.tied[1] or family.tied[0] not in tensors:
        return False
    embedding, head = tensors[family.tied[0]], tensors[name]
    return embedding.shape == head.shape and all(np.array_equal(a, b) for a, b in zip(embedding, head, strict=True))


def _nothing(shape: tuple[int, ...]) -> np.ndarray:
    """An array of a shape that takes no memory."""
    return np.broadcast_to(np.zeros((), np.int8), shape)


def _several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def by_model_type(*names: str) -> Callable[[Mapping[str, Any], Iterable[str]], bool]:
    """Matches a config.json by its `model_type`."""
    return lambda content, tensors: content.get("model_type") in names


def layers(table: Iterable[Row], n: int) -> Iterator[Row]:
    """The rows of a table for layers 0 to n - 1."""
    return (row.at(i=i) for i in range(n) for row in table)
