"""The variables of a model in the checkpoints of a run: read alone, into any shardings, and trusted only with the
digests of their seal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import orbax.checkpoint as ocp

from jaxzoo.config import TrainConfig
from jaxzoo.models.blueprint import Variables
from jaxzoo.train.digest import digests
from jaxzoo.train.metrics import best_steps, read_rows
from jaxzoo.train.restore import folders, newest_usable, reading
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.seal import Seal, UnusableError, read_seal

Which = int | Literal["best"] | None
"""A checkpoint of a run: that of a step; the one with the best validation, by the run's `train.best_metric`; None: the
newest. One of the last two that cannot be used gives way to the next, with a warning."""

Shapes = dict[str, tuple[int, ...]]
"""Shapes by the names of variables, such as `stacks/0/blocks/1/mixer/q/kernel`."""


class Stored(NamedTuple):
    """Variables and seal of a checkpoint, verified by its digests."""

    variables: Variables
    """All that the model holds."""
    seal: Seal
    """Step, cursor and config of the checkpoint."""


def find_run(directory: Path, option: str = "--run") -> RunDirectory:
    """The run in a directory.

    Args:
      directory: the run's.
      option: what named it.

    Raises:
      ValueError: there is none.
    """
    run = RunDirectory(directory.absolute())
    if not run.path.is_dir():
        raise ValueError(f"{run.path} does not exist; {option} takes the directory of a run, such as runs/mqar-based")
    if not run.holds_run:
        raise ValueError(
            f"{run.path} holds no run: {run.config.name} is missing; {option} takes the directory of a run"
        )
    return run


def read_stored(run: RunDirectory, step: Which, abstract: Variables, check: Callable[[Seal], None]) -> Stored:
    """The variables of a checkpoint, and nothing else of it. Nothing is written.

    Args:
      run: its directory.
      step: which checkpoint.
      abstract: shapes, dtypes and shardings to read into; any mesh will do.
      check: raises ValueError for a checkpoint whose variables are others, before any of them is read.

    Raises:
      ValueError: there is no (such) checkpoint, or what `check` raises.
      OSError: a file cannot be read, or holds other numbers than were saved.
    """

    def read(folder: Path) -> Stored:
        seal = read_seal(folder)
        check(seal)
        with reading():
            variables = _restore(folder / "state", abstract)
            found = digests({name: tree for name, tree in variables._asdict().items() if tree})
        seal.check_digests(found)
        return Stored(variables, seal)

    try:
        if step is None:
            found = newest_usable(run.checkpoints, read, run.newest_checkpoint)
        elif step == "best":
            found = newest_usable(run.checkpoints, read, order=_best(run))
        else:
            found = read(_folder(run, step))
    except UnusableError as error:
        what = f"checkpoint {step} cannot be used: " if isinstance(step, int) else ""
        raise OSError(f"{run.path}: {what}{error}") from None
    if found is None:
        raise ValueError(_NO_CHECKPOINT.format(run.path))
    return found


def first_other_shape(there: Shapes, here: Variables) -> tuple[str, Any, Any] | None:
    """The first variable that two models do not share, as (name, shape there, shape here); None: they share them all.

    Orbax restores what it finds, and leaves out what it does not.
    """
    shapes = {name: x.shape for tree in here for name, x in names_of(tree).items()}
    for name in sorted(there.keys() | shapes.keys()):
        if there.get(name) != shapes.get(name):
            return name, there.get(name), shapes.get(name)
    return None


def shapes_of(seal: Seal) -> Shapes:
    """Shapes of the variables in a checkpoint."""
    parts = {name: array for name, array in seal.digests.items() if name.split("/")[0] in Variables._fields}
    return {name.partition("/")[2]: tuple(array["shape"]) for name, array in parts.items()}


def names_of(tree: dict) -> dict[str, Any]:
    """The leaves of nested dicts by name, such as `stacks/0/blocks/1/mixer/q/kernel`."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def tokenizer_of(cursor: dict) -> str:
    """Fingerprint of the tokenizer that made the tokens of a stream, by its cursor; empty: no text."""
    made_by = cursor.get("fingerprint")
    return made_by.rpartition(":")[0] if isinstance(made_by, str) else ""


_NO_CHECKPOINT = "{} holds a run without checkpoint; train it until it has saved one"


def _folder(run: RunDirectory, step: int) -> Path:
    found = folders(run.checkpoints)
    if not found:
        raise ValueError(_NO_CHECKPOINT.format(run.path))
    if step not in found:
        raise ValueError(f"checkpoint {step} must be one of {', '.join(map(str, sorted(found)))}, those in {run.path}")
    return found[step]


def _best(run: RunDirectory) -> list[int]:
    """The checkpoints of validated steps, the best first."""
    found = folders(run.checkpoints)
    metric = run.read_config().get("train", {}).get("best_metric", TrainConfig.best_metric)
    steps = best_steps(read_rows(run.metrics), metric, among=found)
    if found and not steps:
        raise ValueError(
            f"{run.path}: {run.metrics.name} has {metric} for none of the checkpoints {', '.join(map(str, found))}; "
            "name one by its step"
        )
    return steps


def _restore(state: Any, abstract: Variables) -> Variables:
    item = {name: tree for name, tree in abstract._asdict().items() if tree}
    only_variables: Any = ocp.args.PyTreeRestore(
        item=item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
    )
    restored = ocp.PyTreeCheckpointHandler().restore(state, args=only_variables)
    return Variables(restored["params"], restored.get("buffers") or {})
