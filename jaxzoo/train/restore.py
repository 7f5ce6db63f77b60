"""Reader of checkpoints: no array is trusted before it has the digest that was saved with it."""

import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp

from jaxzoo.config.config_io import Json, completed, first_difference
from jaxzoo.config.json_files import parse_json, read_json
from jaxzoo.models.blueprint import Shapes, Variables, names_of
from jaxzoo.parallel.agreement import leaders, together
from jaxzoo.train.config import ExperimentConfig
from jaxzoo.train.run_dir import MAY_CHANGE
from jaxzoo.train.state import TrainState
from jaxzoo.utils.checksums import Digests, digests
from jaxzoo.utils.screen import warn

T = TypeVar("T")

STATE, SEAL = "state", "seal"
"""Items of a checkpoint."""

UNFINISHED = ".orbax-checkpoint-tmp"
"""In the name of a checkpoint that is being saved, or was when its process died."""

UNUSABLE = ".unusable"
"""After the step in the name of a checkpoint that a resumed run could not use; kept, and not read again."""


class UnusableError(Exception):
    """A checkpoint cannot be used; the message names its item or array, and why."""


class CheckpointManifest(NamedTuple):
    """Description that is saved with the arrays of a step, as one text, so that no part can be exchanged."""

    step: int
    """Updates that the state has seen; the name of the step's folder says the same."""
    cursor: dict[str, Any]
    """The data cursor."""
    config: dict[str, Any]
    """The experiment."""
    n_rows: int
    """Rows of metrics up to the step."""
    digests: Digests
    """Digests of all arrays of the state."""

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON gives them back, and the SHA-256 of their text."""
        named = {name: digest._asdict() for name, digest in self.digests.items()}
        content = json.loads(json.dumps(self._replace(digests=named)._asdict()))  # type: ignore[arg-type]
        return {**content, "sha256": _sha256(content)}

    @property
    def shapes(self) -> Shapes:
        """Shapes of the variables, by name."""
        parts = {name: array for name, array in self.digests.items() if name.split("/")[0] in Variables._fields}
        return {name.partition("/")[2]: array.shape for name, array in parts.items()}


def folders(directory: Path) -> dict[int, Path]:
    """The folders named after a step, by step, the newest first."""
    names = [path.name for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    steps = sorted((int(name) for name in names if re.fullmatch("0|[1-9][0-9]{0,18}", name)), reverse=True)
    return {step: directory / str(step) for step in steps}


def read_seal(folder: Path) -> CheckpointManifest:
    """The seal of the checkpoint in the folder of a step.

    Raises:
      UnusableError: it is missing or damaged, or of another step than the folder's name says.
    """
    content = _read(folder, SEAL, ocp.args.JsonRestore())
    try:
        sha256 = content.pop("sha256")
        seal = parse_json(json.dumps(content), CheckpointManifest, where=SEAL)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UnusableError(f"{SEAL} is damaged") from None
    if sha256 != _sha256(content):
        raise UnusableError(f"{SEAL} is damaged: its text has another SHA-256 than it says")
    if folder.name != str(seal.step):
        raise UnusableError(f"{SEAL} is of step {seal.step}, but the folder is named {folder.name}")
    return seal


def read_arrays(folder: Path, seal: CheckpointManifest, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Reads some parts of the state of a checkpoint, such as `params`. Every process must call it.

    Args:
      wanted: shapes, dtypes and shardings of each part; any mesh will do.

    Raises:
      UnusableError: the arrays are damaged or missing.
    """
    parts = {name: tree for name, tree in wanted.items() if jax.tree.leaves(tree)}
    places = ocp.checkpoint_utils.construct_restore_args(parts)
    with together(UnusableError):
        found = _read(folder, STATE, ocp.args.PyTreeRestore(parts, restore_args=places, partial_restore=True))
        for name, x in names_of(found).items():
            if not isinstance(x, jax.Array):  # Orbax gives back the shape of an array that its metadata do not name
                raise UnusableError(f"{STATE}: {name} is missing")
    read = digests(found)
    saved = {name for name in seal.digests if name.split("/")[0] in parts}
    wrong = sorted(name for name in saved | read.keys() if read.get(name) != seal.digests.get(name))
    if wrong:
        more = f" and {len(wrong) - 1} more arrays" if len(wrong) > 1 else ""
        raise UnusableError(f"{STATE}: {wrong[0]}{more}: not the numbers that were saved")
    return {**wanted, **found}


def tokenizer_of(cursor: dict[str, Any]) -> str:
    """Fingerprint of the tokenizer that made the tokens of a stream, by its cursor; empty: no text."""
    made_by = cursor.get("fingerprint")
    return made_by.rpartition(":")[0] if isinstance(made_by, str) else ""


def restore(folder: Path, abstract: TrainState, config: Json = None) -> tuple[TrainState, CheckpointManifest]:
    """State and seal of the checkpoint in the folder of a step, verified by its digests.

    Args:
      abstract: shapes, dtypes and shardings to restore into; any mesh will do.
      config: the experiment that goes on from there; None: any.

    Raises:
      UnusableError: a part is missing, damaged, of another step or of another experiment.
    """
    with together(UnusableError):
        seal = read_seal(folder)
        stored = completed(seal.config, ExperimentConfig)
        difference = config is not None and first_difference(stored, config, ignore=MAY_CHANGE)
        if difference:
            raise UnusableError(f"{SEAL} is of another experiment: {difference[0]} differs")
    state = TrainState(**read_arrays(folder, seal, abstract._asdict()))
    if int(state.step) != seal.step:
        raise UnusableError(f"{STATE} is of step {int(state.step)}, but its seal of step {seal.step}")
    return state, seal


def newest_usable(
    directory: Path, read: Callable[[Path], T], record: Path | None = None, order: Sequence[int] | None = None
) -> T | None:
    """Reads the newest checkpoint that can be used, with a warning for each that is newer.

    Args:
      directory: of the checkpoints; nothing is written there.
      read: gets the folder of a step and raises UnusableError where it cannot use it.
      record: file with the newest step that was ever complete.
      order: steps in the order in which they are tried, all of which exist; None: the newest first.

    Returns:
      None where there is no checkpoint and never was one.

    Raises:
      UnusableError: none of the checkpoints can be used, or all are gone.
    """
    recorded, steps = leaders(lambda: (_recorded(directory, record), list(folders(directory))))
    if not steps and recorded is None:
        return None
    failures = {} if recorded is None or any(step >= recorded for step in steps) else {recorded: "its folder is gone"}
    for step in steps if order is None else order:
        try:
            result = read(directory / str(step))
        except UnusableError as error:
            failures[step] = str(error)
            continue
        for failed, reason in failures.items():
            warn(f"checkpoint {failed} in {directory} cannot be used ({reason}); taking that of step {step}")
        return result
    reasons = "; ".join(f"{step}: {reason}" for step, reason in failures.items())
    raise UnusableError(f"no checkpoint in {directory} can be used ({reasons})")


class NewestCheckpoint(NamedTuple):
    """Content of newest_checkpoint.json."""

    newest: int
    """Newest step that was ever complete."""


def _recorded(directory: Path, record: Path | None) -> int | None:
    """The newest step that was ever complete; None: unknown, or its save was in its last moment."""
    try:
        step = read_json(record, NewestCheckpoint).newest if record else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"{error}; ignored")
        return None
    return None if any(directory.glob(f"{step}{UNFINISHED}*")) else step


def _read(folder: Any, item: str, how: Any) -> Any:
    """Reads an item of a checkpoint; raises UnusableError, with one line, for all that Orbax raises of a damaged one.

    Memory that runs out says nothing about the checkpoint and passes.
    """
    try:
        return ocp.CompositeCheckpointHandler().restore(folder, args=ocp.args.Composite(**{item: how}))[item]
    except MemoryError:
        raise
    except Exception as error:  # Orbax raises kinds of its own, TensorStore's, JAX's, and plain Exception
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            raise
        if isinstance(error, FileNotFoundError) or f'Item "{item}" was not found' in str(error):
            raise UnusableError(f"{item} is missing") from None
        words = textwrap.shorten(str(error), 120, placeholder="...") or type(error).__name__
        raise UnusableError(f"{item} cannot be read: {words}") from None


def _sha256(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
