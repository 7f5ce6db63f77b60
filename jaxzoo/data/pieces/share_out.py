"""Independent pieces of work (shards of a corpus), shared among processes, commands and machines.

A piece is done when the file that it makes exists: written whole or not at all, with the same bytes whoever writes it.
So a killed command continues where it stopped, and the number of workers changes nothing but the time. Several
commands, such as an array of cluster jobs, share the pieces: a process holds a file lock on each piece that it makes.
The operating system releases the lock when the process ends, however it ends.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

WAIT_SECONDS = 1.0
"""Time between two checks for pieces that other processes make."""

Report = Callable[[str, int, int], None]
"""Receives the name of a finished piece, and the numbers of finished and of all pieces."""


class Piece(NamedTuple):
    """One piece of work."""

    name: str
    """Name in progress reports and errors."""
    makes: Path
    """File whose existence says that the piece is done; the last one that is written."""
    arguments: tuple[Any, ...]
    """Picklable arguments of the function that makes it."""


def share_out(
    make: Callable[..., None],
    pieces: Sequence[Piece],
    *,
    workers: int,
    claims: Path,
    report: Report = lambda *_: None,
) -> None:
    """Makes all pieces that are not done, and waits for those that other commands make.

    Args:
        make: function of a module.
        pieces: in the order in which they are begun.
        workers: processes; 1: this one alone.
        claims: directory of the locks, made and removed here; the same in every command that shares the pieces.
        report: called after each piece, whoever made it.

    Raises:
        Exception: the first that `make` raised; other workers are killed.
        ChildProcessError: a worker was killed.
    """
    todo = [piece for piece in pieces if not piece.makes.exists()]
    if not todo:
        return
    workers = min(workers, len(todo))

    def tell() -> None:
        for piece in [piece for piece in todo if piece.makes.exists()]:
            todo.remove(piece)
            report(piece.name, len(pieces) - len(todo), len(pieces))

    with _presence(claims):
        if workers == 1:
            _make_pieces(make, list(todo), claims, tell)
            tell()
            return
        with _processes(workers) as executor:
            running = {executor.submit(_work, make, list(todo), claims) for _ in range(workers)}
            try:
                while running:
                    done, running = futures.wait(running, WAIT_SECONDS, futures.FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    tell()
            except BrokenProcessPool as error:
                tell()
                under_way = [piece.name for piece in todo if _lock_file(claims, piece).exists()]
                raise ChildProcessError(
                    f"{' or '.join(under_way) or 'a piece'}: the process that made it was killed, perhaps for memory; "
                    "the same command goes on from here, with fewer --workers if memory was short"
                ) from error


def is_shared(claims: Path) -> bool:
    """Returns whether a command is working on the pieces whose locks lie in this directory."""
    for file in claims.glob("command-*.lock"):
        lock = _try_lock(file)
        if lock is None:
            return True
        lock.release()  # of a killed command
    return False


def _make_pieces(
    make: Callable[..., None], todo: list[Piece], claims: Path, tell: Callable[[], None] = lambda: None
) -> None:
    """Makes each piece that no other process is making until all are done; calls `tell` after each."""
    while todo:
        is_idle = True
        for piece in todo:
            lock = None if piece.makes.exists() else _try_lock(_lock_file(claims, piece))
            if lock is None:
                continue
            is_idle = False
            try:
                if not piece.makes.exists():
                    make(*piece.arguments)
            finally:
                lock.release()
            if not piece.makes.exists():
                raise RuntimeError(f"{piece.name} was made, but there is no {piece.makes}")
            tell()
        todo = [piece for piece in todo if not piece.makes.exists()]
        if todo and is_idle:
            time.sleep(WAIT_SECONDS)


def _work(make: Callable[..., None], pieces: list[Piece], claims: Path) -> None:
    """Runs `_make_pieces` in a worker; errors of other types may not survive the way to the command."""
    try:
        _make_pieces(make, pieces, claims)
    except (ValueError, OSError, MemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


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


def _lock_file(claims: Path, piece: Piece) -> Path:
    return claims / f"{piece.makes.name}.lock"


def _try_lock(path: Path) -> FileLock | None:
    """Locks a file; None if another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


@contextlib.contextmanager
def _processes(n: int) -> Iterator[futures.Executor]:
    """Gives an executor of n processes, which an error or Ctrl-C kills."""
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
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
