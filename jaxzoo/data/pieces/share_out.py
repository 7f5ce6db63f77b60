"""Independent pieces of work (shards of a corpus), shared among processes, commands and machines.

A piece is done when the file that it makes exists: written whole or not at all, with the same bytes whoever writes it.
So a killed command continues where it stopped, and the number of workers changes nothing but the time. Several
commands, such as an array of cluster jobs, share the pieces: a process holds a file lock on each piece that it makes.
The operating system releases the lock when the process ends, however it ends.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

WAIT_SECONDS = 1.0
"""Time between two checks for pieces that other processes make."""

Report = Callable[[str, int, int], None]
"""Receives the name of a finished piece, and the numbers of finished and of all pieces."""


def share_out(
    make: Callable[..., None],
    pieces: Mapping[Path, tuple[Any, ...]],
    *,
    workers: int,
    claims: Path,
    report: Report = lambda *_: None,
) -> None:
    """Makes all pieces that are not done, and waits for those that other commands make.

    Args:
        make: function of a module, called with the arguments of a piece and its file.
        pieces: picklable arguments by the file whose existence says that the piece is done, the last one that is
            written; in the order in which they are begun. The stem of the file is the piece's name.
        workers: processes; 1: this one alone.
        claims: directory of the locks, made and removed here; the same in every command that shares the pieces.
        report: called after each piece, whoever made it.

    Raises:
        Exception: the first that `make` raised; other workers are killed.
        ChildProcessError: a worker was killed.
    """
    todo = [piece for piece in pieces if not piece.exists()]
    if not todo:
        return

    def tell() -> None:
        for piece in [piece for piece in todo if piece.exists()]:
            todo.remove(piece)
            report(piece.stem, len(pieces) - len(todo), len(pieces))

    with _presence(claims), _processes(min(workers, len(todo))) as run:
        while todo:
            n_left = len(todo)
            try:
                for _ in run(functools.partial(_make_piece, make, claims), [(piece, pieces[piece]) for piece in todo]):
                    tell()
            except BrokenProcessPool as error:
                tell()
                under_way = [piece.stem for piece in todo if _lock_file(claims, piece).exists()]
                raise ChildProcessError(
                    f"{' or '.join(under_way) or 'a piece'}: the process that made it was killed, perhaps for memory; "
                    "the same command goes on from here, with fewer --workers if memory was short"
                ) from error
            tell()
            if len(todo) == n_left:
                time.sleep(WAIT_SECONDS)


def is_shared(claims: Path) -> bool:
    """Returns whether a command is working on the pieces whose locks lie in this directory."""
    for file in claims.glob("command-*.lock"):
        lock = _try_lock(file)
        if lock is None:
            return True
        lock.release()  # of a killed command
    return False


def _make_piece(make: Callable[..., None], claims: Path, piece: tuple[Path, tuple[Any, ...]]) -> None:
    """Makes a piece unless it is done, or another process is making it."""
    file, arguments = piece
    lock = None if file.exists() else _try_lock(_lock_file(claims, file))
    if lock is None:
        return
    try:
        if not file.exists():
            make(*arguments, file)
    finally:
        lock.release()
    if not file.exists():
        raise RuntimeError(f"{file.stem} was made, but there is no {file}")


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
        lock.release()
        if not is_shared(claims):
            for file in claims.glob("*.lock"):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a command has come in the meantime
                claims.rmdir()


def _lock_file(claims: Path, piece: Path) -> Path:
    return claims / f"{piece.name}.lock"


def _try_lock(path: Path) -> FileLock | None:
    """Locks a file; None if another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


@contextlib.contextmanager
def _processes(n: int) -> Iterator[Callable[..., Iterator[None]]]:
    """Gives a `map` that yields after each call: in this process, or in n that an error or Ctrl-C kills."""
    if n == 1:
        yield map
        return
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(n, context, initializer=_begin_worker) as executor:

        def run(function: Callable[..., None], items: Sequence[Any]) -> Iterator[None]:
            for future in futures.as_completed([executor.submit(_work, function, item) for item in items]):
                yield future.result()

        try:
            yield run
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _work(function: Callable[..., None], item: Any) -> None:
    """Calls a function in a worker; errors of other types may not survive the way to the command."""
    try:
        function(item)
    except (ValueError, OSError, MemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _begin_worker() -> None:
    """Leaves Ctrl-C to the command, and ends this process with the command, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
