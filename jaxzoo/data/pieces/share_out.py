"""Independent pieces of work (shards of a corpus), shared out among processes, commands and machines.

A piece is done when the file that it makes exists: it is made whole or not at all, and is the same whoever makes it. So
a killed command starts again where it stopped, and the number of workers changes nothing but the time. The same command
started several times, such as in an array of jobs of a cluster, shares the pieces: a command holds a file lock for each
piece that it makes. The operating system releases it when its process ends, however that ends.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

WAIT_SECONDS = 1.0
"""Time between two looks at pieces that others make."""


class Piece(NamedTuple):
    """One piece of work."""

    name: str
    """Its name in progress reports and errors."""
    makes: Path
    """The file whose existence says that the piece is done; its last one."""
    arguments: tuple[Any, ...]
    """Arguments of the function that makes it; picklable."""


def share_out(
    make: Callable[..., None],
    pieces: Sequence[Piece],
    *,
    workers: int,
    report: Callable[[str, int, int], None],
    claims: Path | None = None,
) -> None:
    """Makes all pieces that are not done yet, and waits for those that another command makes.

    Args:
        make: a function of a module, called with a piece's arguments.
        pieces: in the order in which they are begun; the same in every command that shares them.
        workers: processes; 1: this one alone.
        report: gets name, number done and number of all, after each piece, whoever made it.
        claims: directory of the locks, made and removed here; None: `.claims` next to the first piece's file.

    Raises:
        Exception: the first that `make` raised; pieces that were under way are given up.
        ChildProcessError: a worker process was killed.
    """
    if not pieces:
        return
    claims = claims or pieces[0].makes.parent / ".claims"
    todo = {i: piece for i, piece in enumerate(pieces) if not piece.makes.exists()}
    workers = min(workers, len(todo))
    running: dict[futures.Future, tuple[int, FileLock]] = {}
    with _presence(claims), _workers(workers) as executor:
        try:
            while todo:
                under_way = {i for i, _ in running.values()}
                for i in [i for i in todo if i not in under_way]:
                    if len(running) == workers:
                        break
                    lock = _try_lock(claims / f"{i}-{todo[i].makes.name}.lock")
                    if lock is not None and todo[i].makes.exists():
                        _remove(lock)
                    elif lock is not None:
                        running[executor.submit(_call, make, todo[i].arguments)] = i, lock
                if not running:
                    time.sleep(WAIT_SECONDS)
                for future in futures.wait(running, WAIT_SECONDS, futures.FIRST_COMPLETED).done:
                    future.result()
                    i, lock = running.pop(future)
                    if not todo[i].makes.exists():
                        raise RuntimeError(f"{todo[i].name} was made, but there is no {todo[i].makes}")
                    _remove(lock)
                under_way = {i for i, _ in running.values()}
                for i in [i for i, piece in todo.items() if i not in under_way and piece.makes.exists()]:
                    piece = todo.pop(i)
                    report(piece.name, len(pieces) - len(todo), len(pieces))
        except BrokenProcessPool as error:
            names = " or ".join(todo[i].name for i, _ in running.values()) or "a piece"
            raise ChildProcessError(
                f"{names}: the process that made it was killed, perhaps for memory; the same command goes on "
                "from here, with fewer --workers if memory was short"
            ) from error
        finally:
            for _, lock in running.values():
                _remove(lock)


def is_shared(claims: Path) -> bool:
    """Whether a command is at the pieces whose locks lie in this directory."""
    for file in claims.glob("command-*.lock"):
        lock = _try_lock(file)
        if lock is None:
            return True
        _remove(lock)  # of a command that was killed
    return False


@contextlib.contextmanager
def _presence(claims: Path) -> Iterator[None]:
    """Shows other commands that this one needs the pieces; the last one to leave removes the directory."""
    lock = None
    while lock is None:
        claims.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another command has just removed the directory
            lock = _try_lock(claims / f"command-{uuid.uuid4().hex}.lock")
    try:
        yield
    finally:
        _remove(lock)
        if not is_shared(claims):
            for file in claims.glob("*.lock"):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a command has come in the meantime
                claims.rmdir()


def _try_lock(path: Path) -> FileLock | None:
    """Locks a file; None if another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def _remove(lock: FileLock) -> None:
    """Removes a locked file, then unlocks it: a process that opened it in between tries again."""
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


class _ThisProcess(futures.Executor):
    """Makes a piece within `submit`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future:
        future: futures.Future = futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def _workers(n: int) -> Iterator[futures.Executor]:
    """Gives an executor of n processes; an error or Ctrl-C kills them."""
    if n <= 1:
        yield _ThisProcess()
        return
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(n, context, initializer=_begin_worker) as executor:
        try:
            yield executor
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker() -> None:
    """Leaves Ctrl-C to the command, and ends this process with the command, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _call(make: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Makes a piece; an error that cannot be sent to the command becomes a RuntimeError of its text."""
    try:
        make(*arguments)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
