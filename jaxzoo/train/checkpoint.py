"""Checkpoints of a run: state, data cursor, config and digests of a step, saved whole or not at all."""

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orbax.checkpoint as ocp

from jaxzoo.config.config_io import Json
from jaxzoo.parallel.agreement import is_leader, leaders, together
from jaxzoo.train.restore import (
    SEAL,
    STATE,
    UNFINISHED,
    UNUSABLE,
    CheckpointManifest,
    NewestCheckpoint,
    folders,
    newest_usable,
    restore,
)
from jaxzoo.train.state import TrainState
from jaxzoo.utils.checksums import digests
from jaxzoo.utils.screen import warn
from jaxzoo.utils.whole_files import write_json


class Checkpoints:
    """Checkpoints of one run, saved while training goes on. Every process of the run must make the same calls.

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
        self._directory, self._keep, self._record, self._best = directory, keep, record, best
        self._prepare = prepare
        self._under_way: int | None = None
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
        seal = CheckpointManifest(step, cursor, config, n_rows, digests(state)).to_json()
        items = {STATE: ocp.args.StandardSave(state), SEAL: ocp.args.JsonSave(seal)}
        with _as_os_error(self._directory):
            with together(OSError):
                if is_leader():
                    self._prepare()
                    for half in () if self._is_clean else self._directory.glob(f"*{UNFINISHED}*"):
                        shutil.rmtree(half)  # of a process that died, or of a save that failed
                    self._set_aside(step)
            self._under_way, self._is_clean = step, False
            try:
                self._saver.save(self._directory / str(step), args=ocp.args.Composite(**items))
            except BaseException:
                self._under_way = None
                raise
        self.newest = step

    def restore_newest(self, abstract: TrainState, config: Json) -> tuple[TrainState, CheckpointManifest] | None:
        """The newest checkpoint that can be used, as `newest_usable` finds it, with the arguments of `restore`; writes
        nothing. Raises `UnusableError`: there are checkpoints, or were, and none can be used."""
        known = [*map(str, folders(self._directory)), UNFINISHED, UNUSABLE]
        names = sorted(path.name for path in self._directory.glob("*"))
        strays = [name for name in names if name not in known and not any(part in name for part in known[-2:])]
        if strays:
            warn(f"{self._directory} holds {', '.join(map(repr, strays))}: no checkpoint, left alone")
        return newest_usable(self._directory, lambda folder: restore(folder, abstract, config), self._record)

    def begin_at(self, step: int | None) -> None:
        """Renames newer checkpoints than `step` (None: all), which could not be used, to make room for new ones."""
        with together(OSError):
            for newer in folders(self._directory) if is_leader() else ():
                if step is None or newer > step:
                    self._set_aside(newer)
            if self._record and is_leader():
                if step is None:
                    self._record.unlink(missing_ok=True)
                else:
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
        self._is_clean, self._under_way = True, None
        found = folders(self._directory)
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
        # Called by the saving thread when all is written, just before the checkpoint gets its name.
        options = ocp.AsyncOptions(post_finalization_callback=lambda: self._note(self._under_way))
        return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(), async_options=options)

    def _note(self, step: int | None) -> None:
        if self._record and step is not None:
            write_json(self._record, NewestCheckpoint(step)._asdict(), owned=True)

    def _newest_on_disk(self) -> int | None:
        return next(iter(folders(self._directory)), None)

    def _set_aside(self, step: int) -> None:
        """Gives the folder of this step, if there is one, another name."""
        path = self._directory / str(step)
        names = [f"{step}{UNUSABLE}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000)))]
        if path.exists():
            path.rename(next(path.with_name(name) for name in names if not path.with_name(name).exists()))


_DISK_ERRORS = tuple(
    os.strerror(getattr(errno, name))
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "ENOENT", "ENOTDIR", "EIO", "EREMOTEIO", "ESTALE"),
        *("ETIMEDOUT", "ENOTCONN", "EHOSTDOWN", "EBUSY"),
    )
    if hasattr(errno, name)
)
"""Words of the operating system by which an error of a local or shared file system is known."""


@contextlib.contextmanager
def _as_os_error(directory: Path) -> Iterator[None]:
    """Raises OSError for an error of a disk, which the storage layer raises as ValueError or RuntimeError.

    Any other ValueError or RuntimeError is a defect, which no second attempt mends, and passes.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        text = str(error).strip() or type(error).__name__
        reason = next((reason for reason in _DISK_ERRORS if reason in text), None)
        if reason is None and not isinstance(error, OSError):
            raise
        raise OSError(f"checkpoint in {directory}: {reason or text.splitlines()[0]}") from error
