"""Checkpoints of a run: state, data cursor, config and digests of a step, saved whole or not at all.

No array of a checkpoint is trusted before it has the digest that was saved with it.
"""

import contextlib
import functools
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxzoo.config.config_io import Json, completed, first_difference
from jaxzoo.config.json_files import decode_json, read_json
from jaxzoo.models.blueprint import Shapes, Variables, names_of
from jaxzoo.parallel.agreement import is_leader, is_one_of_many, leaders, together
from jaxzoo.train.config import RunConfig
from jaxzoo.train.run_dir import MAY_CHANGE
from jaxzoo.train.state import TrainState
from jaxzoo.utils.checksums import ArrayDigest, DamagedError, Digests, add_checksum, digests, without_checksum
from jaxzoo.utils.screen import warn
from jaxzoo.utils.whole_files import write_json

T = TypeVar("T")

STATE = "state"
"""Item of a checkpoint: the arrays."""
SEAL = "seal"
"""Item of a checkpoint: its manifest."""

UNFINISHED = ".orbax-checkpoint-tmp"
"""Part of the name of a checkpoint that is being saved, or whose process died meanwhile."""


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
        return add_checksum(self._replace(digests=named)._asdict(), "sha256")  # type: ignore[arg-type]

    @property
    def shapes(self) -> Shapes:
        """Shapes of the variables, by name."""
        parts = {name: array for name, array in self.digests.items() if name.split("/")[0] in Variables._fields}
        return {name.partition("/")[2]: array.shape for name, array in parts.items()}


class Checkpoints:
    """Saver of a run's checkpoints, while training goes on. Every process of the run must make the same calls.

    Attributes:
      newest: the newest step that was saved, whether by this process or an earlier one; None: none.

    A save is written under another name and renamed when it is complete, so a process that dies in the
    middle leaves the checkpoint before it as the latest. Leaving the `with` block waits for the save under
    way. Nothing is written before the first save.

    Args:
      directory: absolute path; made where it is missing.
      keep: how many checkpoints stay, the newest ones.
      record: file for the newest step that was ever complete, so that its loss is noticed; None: no such file.
      best: names those of the steps on disk that stay whatever their age; None: none do.
      prepare: called by process 0 before a save; may raise OSError.
    """

    def __init__(
        self,
        directory: Path,
        keep: int = 1,
        record: Path | None = None,
        best: Callable[[Collection[int]], Collection[int]] = lambda steps: (),
        prepare: Callable[[], None] = lambda: None,
    ):
        self._directory = directory
        self._keep = keep
        self._record = record
        self._best = best
        self._prepare = prepare
        self._under_way: int | None = None
        self._probe: tuple[str, ArrayDigest] | None = None
        self._is_clean = False
        self.newest: int | None = leaders(self._newest_on_disk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(OSError) if isinstance(error, OSError) else contextlib.nullcontext():
            self.wait()
            if "_saver" in vars(self):
                self._saver.close()

    def save(
        self, step: int, state: TrainState | dict[str, Any], *, cursor: dict[str, Any], config: Json, n_rows: int = 0
    ) -> None:
        """Begins to save; `state` may be donated as soon as this returns.

        Args:
          step: updates that `state` has seen.
          state: what is saved; a dict of parts of a state, where a run is not trained.
          n_rows: rows of metrics up to here.

        Raises:
          OSError: this save, or the one before it, could not be written; older checkpoints are untouched.
        """
        self.wait()
        sums = digests(state)
        self._probe = _smallest(state, sums)
        seal = CheckpointManifest(step, cursor, config, n_rows, sums).to_json()
        items = {STATE: ocp.args.StandardSave(state), SEAL: ocp.args.JsonSave(seal)}
        with _as_os_error(self._directory):
            with together(OSError):
                if is_leader():
                    self._prepare()
                    for half in () if self._is_clean else self._directory.glob(f"*{UNFINISHED}*"):
                        shutil.rmtree(half)  # of a process that died, or of a save that failed
            self._under_way = step
            self._is_clean = False
            try:
                place = self._directory / str(step)  # force: replaces a checkpoint that could not be used
                self._saver.save(place, args=ocp.args.Composite(**items), force=True)
            except BaseException:
                self._under_way = None
                raise
        self.newest = step

    def restore_newest(self, abstract: TrainState, config: Json) -> tuple[TrainState, CheckpointManifest] | None:
        """The newest checkpoint that can be used, as `newest_usable` finds it, with the arguments of `restore`; writes
        nothing. Raises `UnusableError`: there are checkpoints, or were, and none can be used."""
        known = {str(step) for step in folders(self._directory)}
        names = sorted(path.name for path in self._directory.glob("*"))
        strays = [name for name in names if name not in known and UNFINISHED not in name]
        if strays:
            warn(f"{self._directory} holds {', '.join(map(repr, strays))}: no checkpoint, left alone")
        return newest_usable(self._directory, lambda folder: restore(folder, abstract, config), self._record)

    def begin_at(self, step: int | None) -> None:
        """Forgets newer checkpoints than `step` (None: all), which could not be used; new ones will replace them."""
        with together(OSError):
            if self._record and is_leader():
                self._record.unlink(missing_ok=True)
                self._note(step)
        self.newest = step

    def wait(self) -> None:
        """Waits until what `save` began is on disk, and removes checkpoints that are too many by then.

        Raises:
          OSError: it could not be written; another `save` may be tried.
        """
        self._watch(lambda: self._saver.wait_until_finished())
        if self._under_way is None:
            return
        self._is_clean = True
        self._under_way = None
        found = {step: folder for step, folder in folders(self._directory).items() if step <= (self.newest or 0)}
        best = self._best(found)
        for step in list(found)[self._keep :] if is_leader() else ():
            if step not in best:
                try:
                    shutil.rmtree(found[step])
                except OSError as error:
                    warn(f"checkpoint {step} in {self._directory} cannot be removed: {error.strerror or error}")

    def check(self) -> None:
        """Raises OSError where what `save` began has failed by now; does not wait for it."""
        self._watch(lambda: self._saver.check_for_errors())

    def _watch(self, look: Callable[[], None]) -> None:
        """Looks at the save under way, if there is one, and forgets it where it has failed."""
        if self._under_way is None:
            return
        try:
            with _as_os_error(self._directory):
                look()
        except BaseException:
            self._under_way = None
            self.newest = self._newest_on_disk()
            raise

    @functools.cached_property
    def _saver(self) -> ocp.AsyncCheckpointer:
        options = ocp.AsyncOptions(post_finalization_callback=self._accept)
        return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(), async_options=options)

    def _accept(self) -> None:
        """Reads back what the saving thread has written, just before it gets its name. Raises `OSError`."""
        folder = next(self._directory.glob(f"{self._under_way}{UNFINISHED}*"), self._directory)
        try:
            read_seal(folder)
            if self._probe:
                _check_array(folder, *self._probe)
        except UnusableError as error:
            raise OSError(f"step {self._under_way} was not written as it was saved: {error}") from None
        self._note(self._under_way)

    def _note(self, step: int | None) -> None:
        if self._record and step is not None:
            write_json(self._record, NewestCheckpoint(step)._asdict(), owned=True)

    def _newest_on_disk(self) -> int | None:
        return next(iter(folders(self._directory)), None)


@contextlib.contextmanager
def _as_os_error(directory: Path) -> Iterator[None]:
    """Raises OSError, with one line, for an error of a save: the storage layer raises ValueError and RuntimeError for
    a disk that is full or gone."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise OSError(f"checkpoint in {directory}: {lines[0]}") from error


def folders(directory: Path) -> dict[int, Path]:
    """The folders named after a step, by step, the newest first."""
    names = [path.name for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    steps = sorted((int(name) for name in names if re.fullmatch("0|[1-9][0-9]{0,18}", name)), reverse=True)
    return {step: directory / str(step) for step in steps}


def read_seal(folder: Path) -> CheckpointManifest:
    """The seal of the checkpoint in the folder of a step, which may end in `UNFINISHED`.

    Raises:
      UnusableError: it is missing or damaged, or of another step than the folder's name says.
    """
    content = _read(folder, SEAL, ocp.args.JsonRestore())
    try:
        seal = decode_json(without_checksum(content, "sha256"), CheckpointManifest)
    except DamagedError as error:
        raise UnusableError(f"{SEAL} {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UnusableError(f"{SEAL} is damaged") from None
    if folder.name.partition(UNFINISHED)[0] != str(seal.step):
        raise UnusableError(f"{SEAL} is of step {seal.step}, but the folder is named {folder.name}")
    return seal


def _smallest(state: Any, sums: Digests) -> tuple[str, ArrayDigest] | None:
    """Name and digest of the smallest array that every device has; None: there is none outside of lists."""
    arrays = {name: x for name, x in names_of(state).items() if not re.search(r"/\d", name)}
    whole = [name for name, x in arrays.items() if getattr(x, "is_fully_replicated", True)]
    return min(((name, sums[name]) for name in whole), key=lambda pair: math.prod(pair[1].shape), default=None)


def _check_array(folder: Path, name: str, digest: ArrayDigest) -> None:
    """Compares one array of a checkpoint with its digest; one process alone may call it. Raises `UnusableError`."""
    wanted: Any = jax.ShapeDtypeStruct(digest.shape, digest.dtype)
    for key in reversed(name.split("/")):
        wanted = {key: wanted}
    places = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    how = ocp.args.PyTreeRestore(wanted, restore_args=places, partial_restore=True)
    if digests(_read(folder, STATE, how)) != {name: digest}:
        raise UnusableError(f"{STATE}: {name}: not the numbers that were saved")


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
        stored = completed(seal.config, RunConfig)
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
    tried = list(steps if order is None else order)
    for step in tried:  # which grows
        try:
            result = read(directory / str(step))
        except UnusableError as error:
            if not is_one_of_many() and not (directory / str(step)).exists():  # replaced by a newer one meanwhile
                tried += [new for new in folders(directory) if new not in tried]
                continue
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


def _read(folder: Path, item: str, how: Any) -> Any:
    """Reads an item of a checkpoint; raises UnusableError, with one line, for all that Orbax raises of a damaged one.

    Memory that runs out says nothing about the checkpoint and passes.
    """
    if not (folder / item).is_dir():
        raise UnusableError(f"{item} is missing")
    try:
        place: Any = folder
        return ocp.CompositeCheckpointHandler().restore(place, args=ocp.args.Composite(**{item: how}))[item]
    except MemoryError:
        raise
    except Exception as error:  # Orbax raises kinds of its own, TensorStore's, JAX's, and plain Exception
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        words = textwrap.shorten(str(error), 120, placeholder="...") or type(error).__name__
        raise UnusableError(f"{item} cannot be read: {words}") from None
