"""Output directories of resumable commands, which work job by job; interruptions do not change the result.

A job is done when its note exists, which it writes last. The bytes of notes and results depend only on the plan, not
on workers or interruptions. Several commands, such as an array of cluster jobs, share the jobs of a directory
(`jaxzoo.utils.work_queue`).
"""

import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jaxzoo.config.checked import shorten
from jaxzoo.config.config_io import first_difference
from jaxzoo.utils.checksums import add_checksum, read_checked
from jaxzoo.utils.whole_files import refuse_links, write_json
from jaxzoo.utils.work_queue import WorkQueue

T = TypeVar("T")

WAIT_SECONDS = 1.0
"""Interval at which jobs of other processes are checked."""
QUEUE = ".queue"
"""Folder of the work queue; exists while there is work."""

Report = Callable[[str, int, int], None]
"""Receives the name of a finished job, and the numbers of finished and of all jobs."""
Arguments = Mapping[str, tuple[Any, ...]]
"""Picklable arguments by job name, in the order in which jobs start."""


class Job(NamedTuple):
    """Second argument of the function that makes a job: the path of its note, and `tell(documents=3)`, which reports
    progress."""

    note: Path
    tell: Callable[..., None]


@dataclasses.dataclass(frozen=True)
class ResumableDirectory:
    """Directory of results, with unfinished work in it. Raises `ValueError` if it holds something else, or results of
    another plan."""

    path: Path
    plan: Mapping[str, Any]
    """Everything that determines the results, most important fields first."""
    plan_file: str = "plan.json"
    """First file, with the plan."""
    notes: str = "parts"
    result: str = "manifest.json"
    """Last file; if `plan_file` is temporary, it holds the plan as well."""
    temporary: tuple[str, ...] = ("plan.json", "parts")
    """Files and directories that are removed once the results exist."""

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Raises as the class does; called again before the work, as another command may have started meanwhile."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out {self.path} must be a directory")
        if not self.is_finished:
            refuse_links(*self.path.glob("*"))
        is_temporary = self.plan_file in self.temporary
        in_result = self.is_finished and is_temporary
        name = self.result if in_result else self.plan_file
        if not (self.path / name).is_file():
            others = sorted(file.name for file in self.path.glob("*") if not file.match(f"{name}.*.tmp"))
            if others and self.is_finished and is_temporary and not in_result:  # another command finished meanwhile
                self._check()
            elif others:
                rule = f"holds {others[0]!r}, which this command did not write"
                raise ValueError(f"--out {self.path} {rule}; choose another place")
            return
        found = read_checked(self.path / name, dict, remedy=f"remove {self.path} and start again")
        wanted = json.loads(json.dumps(self.plan))
        difference = first_difference({key: found.get(key) for key in wanted}, wanted)
        if difference:
            field, old, new = difference
            rule = f"holds other results: {field} is {shorten(old)} there and {shorten(new)} here"
            raise ValueError(f"--out {self.path} {rule}; choose another place, or remove it")

    @property
    def is_finished(self) -> bool:
        return (self.path / self.result).is_file()

    def note(self, name: str) -> Path:
        return self.path / self.notes / f"{name}.json"

    def is_done(self, name: str) -> bool:
        """Whether a job is done; once the results exist, its note may have been removed."""
        return self.note(name).exists() or self.is_finished

    def queue(self) -> WorkQueue:
        return WorkQueue(self.path / QUEUE, str(os.getpid()))

    def make(
        self,
        make: Callable[..., None],
        arguments: Arguments,
        finish: Callable[[], None],
        *,
        prepare: Callable[[], None] = lambda: None,
        workers: int = 1,
        report: Report = lambda *_: None,
    ) -> bool:
        """Makes the missing jobs and then the results; removes unfinished work.

        Args:
            make: function of a module, called with the arguments of a job and a `Job`.
            finish: writes the results, the file `result` last.
            prepare: writes what the jobs need.
            workers: number of processes, each for one job at a time.
            report: called after each job of any process.

        Returns False if the results existed already. Raises the first exception of `make`, which ends the other
        workers; `ChildProcessError` if a worker was killed.
        """
        self._check()
        if is_new := not self.is_finished:
            with self._begun():
                prepare()
                _run(self, make, arguments, workers, report)
            with self.queue() as queue:
                while not self.is_finished:
                    if not queue.take("finish"):
                        time.sleep(WAIT_SECONDS)
                    elif not self.is_finished:
                        finish()
        for left in (*(self.path / name for name in (*self.temporary, QUEUE)), *self.path.glob("*.tmp")):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        return is_new

    def write_manifest(self, results: Mapping[str, Any]) -> None:
        """Writes a `result` that holds the plan and these results."""
        write_json(self.path / self.result, add_checksum({**self.plan, **results}))

    @contextlib.contextmanager
    def _begun(self) -> Iterator[None]:
        """Makes the directory and writes its plan; removes them if an input is refused before any job is done, so that
        the command can be repeated with the repaired input."""
        existed = self.path.exists()
        was_empty = not any(self.path.glob("*"))
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / self.plan_file).exists():
            write_json(self.path / self.plan_file, add_checksum(self.plan))
        self._check()
        (self.path / self.notes).mkdir(parents=True, exist_ok=True)
        try:
            yield
        except ValueError:
            if was_empty and not any((self.path / self.notes).glob("*-[0-9]*.json")):
                shutil.rmtree(self.path)
                if existed:
                    self.path.mkdir()
            raise


def _run(
    directory: ResumableDirectory, make: Callable[..., None], arguments: Arguments, workers: int, report: Report
) -> None:
    """Makes the jobs in `workers` processes, and waits for those of other commands."""
    todo = [name for name in arguments if not directory.is_done(name)]

    def tell() -> None:
        for name in [name for name in todo if directory.is_done(name)]:
            todo.remove(name)
            report(name, len(arguments) - len(todo), len(arguments))

    workers = min(workers, len(todo))
    if workers < 2:
        _work(directory, make, arguments, tell)
        return
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with futures.ProcessPoolExecutor(workers, context, initializer=_begin_worker) as pool:
        try:
            running = {pool.submit(_work_in_pool, directory, make, arguments) for _ in range(workers)}
            while running:
                ended, running = futures.wait(running, WAIT_SECONDS, futures.FIRST_COMPLETED)
                tell()
                for future in ended:
                    future.result()
        except BaseException as error:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, BrokenProcessPool):
                raise
            killed = " or ".join(directory.queue().progress()) or "a job"
            raise ChildProcessError(
                f"{killed}: the process that made it was killed, perhaps for memory; the same command goes on from "
                "here, with fewer --workers if memory was short"
            ) from error


def _work(
    directory: ResumableDirectory,
    make: Callable[..., None],
    arguments: Arguments,
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Takes jobs from the queue and makes them until all are done."""
    with directory.queue() as queue:
        while left := [name for name in arguments if not directory.is_done(name)]:
            taken = 0
            for name in left:
                if directory.is_done(name) or not queue.take(name):
                    continue
                taken += 1
                if not directory.is_done(name):
                    job = Job(directory.note(name), functools.partial(queue.tell, name))
                    make(*arguments[name], job)
                queue.release(name)
                if not directory.is_done(name):
                    raise RuntimeError(f"{name} was made, but there is no {directory.note(name)}")
                tell()
            if not taken:
                time.sleep(WAIT_SECONDS)
                tell()


def _work_in_pool(*arguments: Any) -> None:
    """Calls `_work` in another process, which can return only picklable errors."""
    try:
        _work(*arguments)
    except (ValueError, OSError, MemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _begin_worker() -> None:
    """Ignores Ctrl-C, which the command handles, and ends this process when the command ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def read_manifest(path: Path, declared: type[T], format: int, what: str, *, command: str, remedy: str) -> T:
    """Reads `manifest.json` of finished results as `read_checked` does. Raises `ValueError` if it is damaged, of
    another format, or missing; with the remedy, or the command that makes it."""
    file = path / "manifest.json"
    if not file.is_file():
        raise ValueError(f"{path} holds no {what}: {file.name} is missing; make them, or finish them, with {command}")
    found = read_checked(file, dict, remedy=remedy).get("format")
    if found != format:
        raise ValueError(f"{file}: format={found!r} must be {format}; {remedy}")
    return read_checked(file, declared, remedy=remedy)
