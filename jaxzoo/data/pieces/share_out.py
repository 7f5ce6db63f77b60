"""Independent pieces of work (shards of a corpus), shared out among processes, commands and machines.

A piece is done when the file that it makes exists: it is made whole or not at all, and is the same whoever makes it. So
a killed command starts again where it stopped, and the number of workers changes nothing but the time. The same command
started several times, such as in an array of jobs of a cluster, shares the pieces out through claims in a directory
that all of them see (`jaxzoo.claims`), which is gone when the last of them ends.
"""

import contextlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxzoo.claims import LEASE_SECONDS, MOST_ATTEMPTS, Queue, bury, living, newest_claims
from jaxzoo.data.pieces.crew import Crew, OwnProcess, Processes

WAIT_SECONDS = 1.0
"""Between two looks at pieces that others make."""


class Piece(NamedTuple):
    """One piece of work."""

    name: str
    """What progress and errors call it."""
    makes: Path
    """The file whose existence says that the piece is done; its last one."""
    arguments: tuple[Any, ...]
    """Of the function that makes it; picklable."""


def share_out(
    make: Callable[..., None],
    pieces: Sequence[Piece],
    *,
    workers: int,
    report: Callable[[str, int, int], None],
    claims: Path | None = None,
    lease: float = LEASE_SECONDS,
) -> None:
    """Makes all pieces that are not done yet, and waits for those that another command makes.

    Args:
        make: a function of a module, called with a piece's arguments.
        pieces: in the order in which they are begun; the same in every command that shares them.
        workers: processes; 1: this one alone.
        report: gets name, number done and number of all, after each piece, whoever made it.
        claims: directory of the claims, made and removed here; None: `.claims` beside the first piece's file.
        lease: seconds of silence after which a command on another machine is dead; one on this machine is as soon as
            its process has ended.

    Raises:
        Exception: the first that `make` raised; pieces that were under way are given up.
        ChildProcessError: a process was killed, or a piece has ended the commands that made it time after time.
    """
    if not pieces:
        return
    shared = _Pieces(pieces, claims or pieces[0].makes.parent / ".claims")
    told = len(shared.done())
    try:
        if told < len(pieces):
            with _queue(shared, lease) as queue, _crew(make, min(workers, len(pieces) - told)) as crew:
                _make_all(shared, queue, crew, report, lease)
    finally:
        shared.remove_claims(lease)


def _make_all(
    shared: "_Pieces", queue: Queue, crew: Crew, report: Callable[[str, int, int], None], lease: float
) -> None:
    told = shared.done()
    running: set[str] = set()
    while len(told) < len(shared.pieces):
        shared.forget_dead(lease)
        for key, piece in shared.pieces.items():
            if crew.is_full:
                break
            if key not in told and key not in running and shared.take(key, queue):
                crew.begin(key, piece.name, piece.arguments)
                running.add(key)
        if not running:
            time.sleep(WAIT_SECONDS)
        for key in crew.wait(WAIT_SECONDS):
            running.remove(key)
            queue.release(key)
            if not shared.pieces[key].makes.exists():
                raise RuntimeError(f"{shared.pieces[key].name} was made, but there is no {shared.pieces[key].makes}")
        new = shared.done() - told
        for key, piece in shared.pieces.items():
            if key in new:
                told.add(key)
                report(piece.name, len(told), len(shared.pieces))


def _crew(make: Callable[..., None], workers: int) -> Crew:
    return OwnProcess(make) if workers == 1 else Processes(make, workers)


@contextlib.contextmanager
def _queue(shared: "_Pieces", lease: float) -> Iterator[Queue]:
    """This command's claims. Another one that ends may remove the directory between two of our steps."""
    name = f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        queue = None
        while queue is None:
            shared.create()
            with contextlib.suppress(FileNotFoundError):
                queue = stack.enter_context(Queue(shared, name, lease=lease))
        yield queue


class _Pieces:
    """Pieces as tasks that commands claim.

    Args:
        pieces: all of them.
        path: directory of the claims.
    """

    def __init__(self, pieces: Sequence[Piece], path: Path):
        self.path, self.claims, self.workers = path, path / "claims", path / "workers"
        self.pieces = {f"{i}-{piece.makes.name.replace('.', '-')}": piece for i, piece in enumerate(pieces)}

    def create(self) -> None:
        """Makes what is missing of the directory."""
        for folder in (self.claims, self.workers):
            folder.mkdir(parents=True, exist_ok=True)

    def done(self) -> set[str]:
        """Those whose file exists."""
        folders = {piece.makes.parent for piece in self.pieces.values()}
        names = {folder: set(os.listdir(folder)) if folder.is_dir() else set() for folder in folders}
        return {key for key, piece in self.pieces.items() if piece.makes.name in names[piece.makes.parent]}

    def failed(self) -> set[str]:
        """None: a failure ends the command."""
        return set()

    def write_failure(self, task: str, failure: Mapping[str, Any]) -> None:
        """Raises `ChildProcessError`: one of these commands after the other was killed at this piece."""
        raise ChildProcessError(
            f"{self.pieces[task].name}: {MOST_ATTEMPTS} commands were killed while they made it, perhaps for memory; "
            "start again with fewer --workers"
        )

    def take(self, key: str, queue: Queue) -> bool:
        """Claims a piece."""
        try:
            return queue.take(key)
        except FileNotFoundError:  # another command has just removed the directory, at its end
            self.create()
            return False

    def forget_dead(self, lease: float) -> None:
        """Says which commands on this machine have ended; where no other lives, what they lost is not held against the
        pieces: their user may have killed them."""
        with contextlib.suppress(FileNotFoundError):
            self.create()
            names = [file.stem for file in self.workers.glob("*.json")]
            bury(self, [name for name in names if _is_gone(name)])
            claimed = newest_claims(self)
            alive = living(self, lease, _host())
            lost = [key for key, claim in claimed.items() if claim.worker not in alive]
            for key in lost if len(alive) == 1 else []:
                for file in self.claims.glob(f"{key}.*"):
                    file.unlink(missing_ok=True)

    def remove_claims(self, lease: float) -> None:
        """Removes the directory, if no other command is at it."""
        with contextlib.suppress(FileNotFoundError):
            if not living(self, lease, _host()):
                shutil.rmtree(self.path)


def _host() -> str:
    return socket.gethostname()


def _is_gone(worker: str) -> bool:
    """Whether a command of this machine has ended."""
    host, number, _ = worker.rsplit("-", 2)
    if host != _host():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
