"""Reads checkpoints, and trusts none before its arrays have the digests of its seal."""

import contextlib
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp

from jaxzoo.config_io import Json, first_difference
from jaxzoo.distributed.agreement import leaders, together
from jaxzoo.screen import warn
from jaxzoo.train.digest import digests
from jaxzoo.train.run_dir import MAY_CHANGE
from jaxzoo.train.seal import Seal, UnusableError, read_seal
from jaxzoo.train.state import TrainState

T = TypeVar("T")

UNFINISHED = ".orbax-checkpoint-tmp"
"""In the name of a checkpoint that is being saved, or was when its process died."""

UNUSABLE = ".unusable"
"""Behind the step in the name of a checkpoint that a resumed run could not use; kept, and not looked at again."""


class Restored(NamedTuple):
    """State and seal of a checkpoint, verified by its digests."""

    state: TrainState
    """The state."""
    seal: Seal
    """Step, cursor and config."""


def folders(directory: Path) -> dict[int, Path]:
    """The folders named after a step, by step, the newest first."""
    names = [path.name for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    steps = sorted((int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name)), reverse=True)
    return {step: directory / str(step) for step in steps}


def restore(folder: Path, abstract: TrainState, config: Json = None) -> Restored:
    """State and seal of the checkpoint in the folder of a step.

    Args:
      folder: the step's.
      abstract: shapes, dtypes and shardings to restore into; any mesh will do.
      config: the experiment that goes on from there; None: any.

    Raises:
      UnusableError: a part is missing, damaged, of another step or of another experiment.
    """
    with together(UnusableError):
        seal = read_seal(folder)
        difference = config is not None and first_difference(seal.config, config, ignore=MAY_CHANGE)
        if difference:
            raise UnusableError(f"seal/metadata is of another experiment: {difference[0]} differs")
    arrays: Any = folder / "state"
    with together(UnusableError), reading():
        state = ocp.StandardCheckpointHandler().restore(arrays, args=ocp.args.StandardRestore(abstract))
    seal.check_digests(digests(state))
    if int(state.step) != seal.step:
        raise UnusableError(f"state is of step {int(state.step)}, but its seal of step {seal.step}")
    return Restored(state, seal)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raises UnusableError, with one line, for all that Orbax raises of a damaged checkpoint.

    Memory that runs out says nothing of the checkpoint and passes.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # Orbax raises kinds of its own, TensorStore's, JAX's, and plain Exception
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            raise
        words = textwrap.shorten(str(error), 120, placeholder="...") or type(error).__name__
        raise UnusableError(f"state cannot be read: {words}") from None


def newest_usable(
    directory: Path, read: Callable[[Path], T], record: Path | None = None, order: Sequence[int] | None = None
) -> T | None:
    """Reads the newest checkpoint that can be used, with a warning for each that is newer.

    Args:
      directory: of the checkpoints; nothing is written there.
      read: gets the folder of a step and raises UnusableError where it cannot use it.
      record: file with the newest step that was ever complete.
      order: steps in the order in which they are tried, all of which there are; None: the newest first.

    Returns:
      None where there is no checkpoint and never was one.

    Raises:
      UnusableError: none of the checkpoints can be used, or all are gone.
    """
    recorded, steps = leaders(lambda: (_recorded(directory, record), list(folders(directory))))
    found = {step: directory / str(step) for step in steps}
    if not found and recorded is None:
        return None
    failures = {} if recorded is None or any(step >= recorded for step in found) else {recorded: "its folder is gone"}
    for step in found if order is None else order:
        try:
            result = read(found[step])
        except UnusableError as error:
            failures[step] = str(error)
            continue
        for failed, reason in failures.items():
            warn(f"checkpoint {failed} in {directory} cannot be used ({reason}); taking that of step {step}")
        return result
    reasons = "; ".join(f"{step}: {reason}" for step, reason in failures.items())
    raise UnusableError(f"no checkpoint in {directory} can be used ({reasons})")


def warn_of_strays(directory: Path) -> None:
    """Names what lies among the checkpoints and is none."""
    ours = {str(step) for step in folders(directory)}
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    strays = [name for name in names if name not in ours and UNFINISHED not in name and UNUSABLE not in name]
    if strays:
        warn(f"{directory} holds {', '.join(map(repr, strays))}: no checkpoint, left alone")


def _recorded(directory: Path, record: Path | None) -> int | None:
    """The newest step that was ever complete; None: not known, or its save was in its last moment."""
    try:
        step = json.loads(record.read_bytes())["newest"] if record else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        warn(f"{record} cannot be read; ignored")
        return None
    unfinished = list(directory.glob(f"{step}{UNFINISHED}*"))
    return step if isinstance(step, int) and not unfinished else None
