"""Families of models as tables: names and transforms of their tensors, and fields of their config.json."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxzoo.interop.fields import Fields
from jaxzoo.interop.transforms import SAME, TRANSPOSED, Transform
from jaxzoo.models.blueprint import Blueprint, names_of
from jaxzoo.models.model_config import LanguageModelConfig


class Move(NamedTuple):
    """Mapping from tensor names of the checkpoint to names of our variables."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    transform: Transform
    """Maps arrays in both directions."""


class Row(NamedTuple):
    """Mapping of every block: names contain `{i}`, the index of the block. Our names are those of an unscanned model:
    `layers.{i}.mixer.q_proj.kernel`. If a block is two of our layers, their indices are `{time}` and `{channel}`."""

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    transform: Transform = SAME

    def at(self, i: int) -> Move:
        """Returns the mapping of one block."""
        theirs, ours = (
            tuple(name.format(i=i, time=2 * i, channel=2 * i + 1) for name in ((x,) if isinstance(x, str) else x))
            for x in (self.theirs, self.ours)
        )
        return Move(theirs, ours, self.transform)


def linears(
    theirs: str, ours: str, names: Mapping[str, str] | Iterable[str], *, kernel: bool = True, bias: bool = False
) -> list[Row]:
    """Returns rows of the weights, biases, or both, of linear layers, by their names there and here."""
    pairs = list(names.items()) if isinstance(names, Mapping) else [(name, name) for name in names]
    kernels = [Row(f"{theirs}.{a}.weight", f"{ours}.{b}.kernel", TRANSPOSED) for a, b in pairs]
    biases = [Row(f"{theirs}.{a}.bias", f"{ours}.{b}.bias") for a, b in pairs]
    return kernels * kernel + biases * bias


def packed(theirs: str, ours: str, names: Iterable[str], transform: Transform, *, bias: bool = False) -> list[Row]:
    """Returns the rows of one of our layers in a linear layer (with bias) that packs several."""
    ends = [("weight", "kernel"), *[("bias", "bias")] * bias]
    return [Row(f"{theirs}.{a}", tuple(f"{ours}.{name}.{b}" for name in names), transform) for a, b in ends]


def norm(theirs: str, ours: str, transform: Transform = SAME, *, bias: bool = False) -> list[Row]:
    """Returns rows of the scale of a norm, and of its bias."""
    return [Row(f"{theirs}.weight", f"{ours}.scale", transform), *[Row(f"{theirs}.bias", f"{ours}.bias")] * bias]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Family of models: how its folders are read and written."""

    name: str
    """Name for `--family`."""
    matches: Callable[[Mapping[str, Any], Iterable[str]], bool]
    """Whether a config.json, and the names of its tensors, are of this family."""
    read: Callable[[Fields, Mapping[str, tuple[int, ...]]], LanguageModelConfig]
    """Returns the model that a config.json and the shapes of the tensors describe."""
    write: Callable[[LanguageModelConfig], dict[str, Any]]
    """Returns the config.json of a model; raises `ValueError` if the family has no such model."""
    ends: tuple[str, str, str]
    """Names of the embedding, of the final norm (without `.weight`) and of the head, which may be present although
    tied."""
    rows: Callable[[LanguageModelConfig, int], Iterable[Row]]
    """Returns the rows of a block by its index."""
    layers_per_block: int = 1
    """Number of our layers per block."""
    norm_scale: Transform = SAME
    """Transform of the scale of the final norm."""
    renames: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Patterns of names and their replacements: prefixes of some folders, names of older versions."""
    prepare: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """Maps the tensors of a folder, after the renames, to those of the rows, for layouts that differ in more."""
    left_out: tuple[str, ...] = ()
    """Patterns of tensors that a model does not need: masks, computed tables, counters."""

    def moves(self, config: LanguageModelConfig) -> tuple[Move, ...]:
        """Returns the mappings of all tensors of a model."""
        embedding, last_norm, head = self.ends
        blocks = [row.at(i) for i in range(config.n_layers // self.layers_per_block) for row in self.rows(config, i)]
        last = norm(last_norm, "final_norm", self.norm_scale, bias=config.norm == "layer")
        if not config.tie_embeddings:
            last.append(Row(head, "head"))
        return (Row(embedding, "embedding").at(0), *blocks, *(row.at(0) for row in last))


class Slot(NamedTuple):
    """Place of a variable in a model with stacked layers."""

    path: str
    """Name in the model, such as `stacks/0/blocks/1/mixer/q_proj/kernel`."""
    repeat: int | None
    """Index in the leading axis of repeats; None if there is no such axis."""
    shape: tuple[int, ...]
    """Shape without that axis."""


class Account(NamedTuple):
    """Account of all tensors of a folder."""

    moves: tuple[Move, ...]
    left_out: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Returns one line of text per tensor."""
        for move in self.moves:
            yield f"{' '.join(move.theirs)} -> {' '.join(move.ours)} ({move.transform.name})"
        for name in self.left_out:
            yield f"{name} -> left out"


def slots(config: LanguageModelConfig, blueprint: Blueprint) -> dict[str, Slot]:
    """Returns the place of every variable, by its name in an unscanned model."""
    first, starts = 0, []
    for fold in config.folds:
        starts.append(first)
        first += len(fold.period) * fold.repeats
    found: dict[str, Slot] = {}
    for path, leaf in (names_of(blueprint.shapes.params) | names_of(blueprint.shapes.buffers)).items():
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
    family: Family, moves: tuple[Move, ...], tensors: Mapping[str, np.ndarray], slots: Mapping[str, Slot], where: str
) -> Account:
    """Accounts for every tensor of a folder, by the mappings of its model, and for every variable. Names of tensors
    lack their common prefix; `where` is the folder's name in errors. Raises `ValueError` if a tensor is unknown,
    missing or of another shape: names the first, and the number of others."""
    known = {name for move in moves for name in move.theirs}
    problems = []
    for move in moves:
        for name, shape in their_shapes(move, slots).items():
            if name not in tensors:
                problems.append(f"tensor {name} of shape {list(shape)} is missing")
            elif tensors[name].shape != shape:
                found = list(tensors[name].shape)
                problems.append(f"tensor {name} has shape {found}, and {list(shape)} by config.json")
            elif isinstance(x := tensors[name], np.ndarray) and x.dtype.kind in "biu":
                problems.append(f"tensor {name} holds numbers of type {x.dtype}, and must hold floats")
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


def their_shapes(move: Move, slots: Mapping[str, Slot]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the checkpoint's tensors without allocating memory."""
    nothing = [np.broadcast_to(np.zeros((), np.int8), slots[name].shape) for name in move.ours]
    return {name: x.shape for name, x in zip(move.theirs, move.transform.write(*nothing), strict=True)}


def _is_tied_copy(family: Family, name: str, tensors: Mapping[str, np.ndarray]) -> bool:
    """Returns whether a tensor is a tied head that equals the embedding."""
    if name != family.ends[2] or family.ends[0] not in tensors:
        return False
    embedding, head = tensors[family.ends[0]], tensors[name]
    embedding, head = np.asarray(embedding), np.asarray(head)
    return embedding.shape == head.shape and all(np.array_equal(a, b) for a, b in zip(embedding, head, strict=True))


def by_model_type(*names: str) -> Callable[[Mapping[str, Any], Iterable[str]], bool]:
    return lambda content, tensors: content.get("model_type") in names
