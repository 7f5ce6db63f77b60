"""The checkpoints of a run: state, data cursor, config and digests of a step, whole or not at all."""

import contextlib
import errno
import functools
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import orbax.checkpoint as ocp

from jaxzoo.config_io import Json
from jaxzoo.distributed.agreement import is_leader, leaders, together
from jaxzoo.screen import warn
from jaxzoo.train.digest import digests
from jaxzoo.train.restore import UNFINISHED, UNUSABLE, Restored, folders, newest_usable, restore, warn_of_strays
from jaxzoo.train.seal import ITEM, Seal
from jaxzoo.train.state import TrainState
from jaxzoo.whole_files import write_json


class Checkpoints:
    """The checkpoints of one run, saved while training goes on. Every process of the run must make the same calls.

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
        best: Callable[[Collection[int]], Collection[int]] | None = None,
        prepare: Callable[[], None] = lambda: None,
    ):
        self._directory, self._keep, self._record, self._best = directory, keep, record, best
        self._prepare = prepare
        self._under_way: int | None = None
        self._is_clean = False
        self.newest = leaders(self._newest_on_disk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        with contextlib.suppress(OSError) if isinstance(error, OSError) else contextlib.nullcontext():
            self.wait()
            if "_saver" in vars(self):
                self._saver.close()

    def save(self, step: int, state: TrainState | dict, *, cursor: dict, config: Json, n_rows: int = 0) -> None:
        """Begins to save; `state` may be donated as soon as this returns.

        Args:
          step: updates that `state` has seen.
          state: what is saved; a dict of parts of a state, where a run is not trained.
          cursor: of the data.
          config: the experiment.
          n_rows: rows of metrics up to here.

        Raises:
          OSError: this save, or the one before it, could not be written; older checkpoints are untouched.
        """
        self.wait()
        seal = Seal(step, cursor, config, n_rows, digests(state))
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), **{ITEM: ocp.args.JsonSave(seal.to_json())})
        with _as_os_error(self._directory):
            with together(OSError):
                if is_leader():
                    self._prepare()
                if not self._is_clean:
                    self._remove_unfinished()
                self._set_aside(step)
            self._under_way, self._is_clean = step, False
            try:
                self._saver.save(self._directory / str(step), args=items)
            except BaseException:
                self._under_way = None
                raise
        self.newest = step

    def restore(self, step: int, abstract: TrainState) -> Restored:
        """State and seal of `step`, into the shapes, dtypes and shardings of `abstract`; any mesh will do.

        Raises:
          UnusableError: the checkpoint is damaged, or not what it says.
        """
        return restore(self._directory / str(step), abstract)

    def restore_newest(self, abstract: TrainState, config: Json) -> Restored | None:
        """The newest checkpoint that can be used, with a warning for each that is newer; writes nothing.

        Args:
          abstract: shapes, dtypes and shardings to restore into; any mesh will do.
          config: the experiment that goes on.

        Returns:
          None where there is no checkpoint and never was one.

        Raises:
          UnusableError: there are checkpoints, or were, and none can be used.
        """
        warn_of_strays(self._directory)
        return newest_usable(self._directory, lambda folder: restore(folder, abstract, config), self._record)

    def begin_at(self, step: int | None) -> None:
        """Renames newer checkpoints than `step` (None: all), which could not be used, to make room for new ones."""
        with together(OSError):
            for newer in folders(self._directory):
                if step is None or newer > step:
                    self._set_aside(newer)
            if self._record and is_leader():
                if step is None:
                    self._record.unlink(missing_ok=True)
                else:
                    write_json(self._record, {"newest": step}, owned=True)
        self.newest = step

    def wait(self) -> None:
        """Waits until what `save` began is on disk, and removes checkpoints that are too many by then.

        Raises:
          OSError: it could not be written; another `save` may be tried.
        """
        if self._under_way is None:
            return
        try:
            with _as_os_error(self._directory):
                self._saver.wait_until_finished()
                self._is_clean = True
                self._remove_old()
        except BaseException:
            self._under_way, self.newest = None, self._newest_on_disk()
            raise
        self._under_way, self.newest = None, self._under_way

    def check(self) -> None:
        """Raises OSError where what `save` began has failed by now; does not wait for it."""
        if self._under_way is None:
            return
        try:
            with _as_os_error(self._directory):
                self._saver.check_for_errors()
        except OSError:
            self._under_way, self.newest = None, self._newest_on_disk()
            raise

    @functools.cached_property
    def _saver(self) -> ocp.AsyncCheckpointer:
        options = ocp.AsyncOptions(post_finalization_callback=self._note)
        return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(), async_options=options)

    def _note(self) -> None:
        """Called by the saving thread when all is written, just before the checkpoint gets its name."""
        if self._record:
            write_json(self._record, {"newest": self._under_way}, owned=True)

    def _newest_on_disk(self) -> int | None:
        return next(iter(folders(self._directory)), None)

    def _remove_old(self) -> None:
        found = folders(self._directory)
        best = self._best(found) if self._best else ()
        for step in list(found)[self._keep :] if is_leader() else ():
            if step not in best:
                try:
                    shutil.rmtree(found[step])
                except OSError as error:
                    warn(f"checkpoint {step} in {self._directory} cannot be removed: {error.strerror or error}")

    def _remove_unfinished(self) -> None:
        """Removes what a process that died, or a save that failed, has left."""
        for half in self._directory.glob(f"*{UNFINISHED}*") if is_leader() else ():
            shutil.rmtree(half)

    def _set_aside(self, step: int) -> None:
        """Gives what has the name of this step another one."""
        path = self._directory / str(step)
        names = [f"{step}{UNUSABLE}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000)))]
        if is_leader() and path.exists():
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
