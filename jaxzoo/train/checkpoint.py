"""Checkpoints by Orbax: state, data cursor and config of a step, whole or not at all."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orbax.checkpoint as ocp

from jaxzoo.train.state import TrainState


class Checkpoints:
    """The checkpoints of one run, saved while training goes on.

    Attributes:
      newest: the newest step that was saved, whether by this process or an earlier one; None: none.

    A save is written under another name and renamed when it is complete, so a process that dies in the
    middle leaves the checkpoint before it as the latest. Leaving the `with` block waits for the save under
    way.

    Args:
      directory: absolute path; made where it is missing.
      keep: how many checkpoints stay.
    """

    def __init__(self, directory: Path, keep: int = 1):
        with _as_os_error(directory):
            options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
            self._manager = ocp.CheckpointManager(directory, options=options)
        self._directory = directory
        self.newest: int | None = self._manager.latest_step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):
                self.wait()
            return
        self.wait()
        self._manager.close()

    def save(self, step: int, state: TrainState, *, cursor: dict, config: dict) -> None:
        """Begins to save; `state` may be donated as soon as this returns.

        Raises:
          OSError: this save, or the one before it, could not be written; older checkpoints are untouched.
        """
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            data=ocp.args.JsonSave(cursor),
            config=ocp.args.JsonSave(config),
        )
        with _as_os_error(self._directory):
            self._manager.save(step, args=items)
        self.newest = step

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, dict]:
        """State and data cursor of `step`.

        Args:
          step: as in `newest`.
          abstract: shapes, dtypes and shardings to restore into; any mesh will do.

        Raises:
          OSError: the checkpoint cannot be read.
        """
        items: Any = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
        with _as_os_error(self._directory):
            restored = self._manager.restore(step, args=items)
        return restored["state"], restored["data"]

    def wait(self) -> None:
        """Waits until what `save` began is on disk.

        Raises:
          OSError: it could not be written.
        """
        with _as_os_error(self._directory):
            self._manager.wait_until_finished()


_REASONS = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)))


@contextlib.contextmanager
def _as_os_error(directory: Path) -> Iterator[None]:
    """One kind for the caller: a full disk reaches us as ValueError or RuntimeError of the storage layer."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        text = str(error).strip() or type(error).__name__
        reason = next((reason for reason in _REASONS if reason in text), text.splitlines()[0])
        raise OSError(f"checkpoint in {directory}: {reason}") from error
