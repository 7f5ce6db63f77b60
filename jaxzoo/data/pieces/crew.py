"""Processes that make pieces of work, and end with the one that started them."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self


class Crew(Protocol):
    """Makes pieces; inside a `with` block, behind which none is under way."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no further piece."""
        ...

    def begin(self, key: str, name: str, arguments: Sequence[Any]) -> None:
        """Starts a piece; not where it is full.

        Args:
            key: what `wait` calls the piece.
            name: what errors call it.
            arguments: of the function that makes it.
        """
        ...

    def wait(self, seconds: float) -> list[str]:
        """The keys of pieces that were made since the last call; waits for one for some time.

        Raises:
            Exception: what the making of a piece raised.
            ChildProcessError: a process ended in the middle of one.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None): ...


class OwnProcess:
    """This process alone: `begin` returns when the piece is made."""

    def __init__(self, make: Callable[..., None]):
        self._make = make
        self._made: list[str] = []

    @property
    def is_full(self) -> bool:
        """Each piece is told of before the next one."""
        return bool(self._made)

    def begin(self, key: str, name: str, arguments: Sequence[Any]) -> None:
        """Makes the piece."""
        self._make(*arguments)
        self._made.append(key)

    def wait(self, seconds: float) -> list[str]:
        """What was made."""
        made, self._made = self._made, []
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        pass


class _Worker(NamedTuple):
    process: Any
    pipe: connection.Connection


class _Task(NamedTuple):
    key: str
    name: str


class Processes:
    """Several processes, each started when it is first needed.

    Args:
        make: a function of a module, called with a piece's arguments.
        most: how many processes.
    """

    def __init__(self, make: Callable[..., None], most: int):
        self._make, self._most = make, most
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, _Task] = {}

    @property
    def is_full(self) -> bool:
        """Whether all are at work."""
        return len(self._busy) == self._most

    def begin(self, key: str, name: str, arguments: Sequence[Any]) -> None:
        """Gives a piece to a process that is idle, or to a new one."""
        worker = self._idle.pop() if self._idle else self._start()
        self._busy[worker] = _Task(key, name)
        with contextlib.suppress(OSError):  # it has ended; `wait` says so
            worker.pipe.send(tuple(arguments))

    def wait(self, seconds: float) -> list[str]:
        """The keys of pieces that were made; the first failure is raised."""
        ready = set(connection.wait([worker.pipe for worker in self._busy], seconds))
        made = []
        for worker, task in list(self._busy.items()):
            if worker.pipe in ready:
                self._receive(worker, task)
                del self._busy[worker]
                self._idle.append(worker)
                made.append(task.key)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        workers = [*self._idle, *self._busy]
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.process.close()
            worker.pipe.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    @staticmethod
    def _receive(worker: _Worker, task: _Task) -> None:
        try:
            error = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            status = worker.process.exitcode
            how = f"was killed by signal {-status}, perhaps for memory" if status < 0 else f"ended with status {status}"
            raise ChildProcessError(
                f"{task.name}: the process that made it {how}; the same command goes on from here, with fewer "
                "--workers if memory was short"
            ) from None
        if error is not None:
            raise error


def _serve(pipe: connection.Connection, make: Callable[..., None]) -> None:
    """Makes the pieces whose arguments come, and answers each with what it raised, or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    threading.Thread(target=_follow_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            arguments = pipe.recv()
            try:
                make(*arguments)
            except Exception as error:
                pipe.send(_portable(error))
            else:
                pipe.send(None)


def _portable(error: Exception) -> Exception:
    """What a pipe carries of an error: itself, if it survives that, with its traceback as a note."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _follow_parent() -> None:
    """Ends this process when the one that started it is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
