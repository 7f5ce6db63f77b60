"""A queue for minutes on a rented GPU: `python -m benchmarks.on_device --minutes 9 --out DIR`; see `--help`.

Pieces run in order, each in processes of its own, and results are written after each. Processes that time something
compile side by side, while pieces that time nothing run, and then have the device one at a time (`turns.py`). A second
call with the same `--state` goes on where the first stopped. A piece is answered when results kept in the repository or
in `--state` were measured by the same command and the same sources.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.on_device_pieces import Piece, Setting, Task, pieces
from benchmarks.turns import Process, all_wait
from jaxzoo.utils.whole_files import write_whole

KEPT = Path("benchmarks/results")
"""Results of earlier queues: `on_device*.json`."""
RESULTS, LOG = "on_device.json", "on_device.log"
"""Files of the results."""
KEPT_LOG = 30_000
"""Characters of a log's end that are kept."""
MARGIN = 10
"""Seconds before its timeout in which a command that knows its time should end."""

MOST_PROCESSES = 32
"""Processes that compile side by side: each takes some 2 GB of the host's memory."""

Pair = tuple[Piece, Task]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status: 1 where a task failed."""
    parser = _parser()
    options = parser.parse_args(argv)
    fla = options.wheels is not None and not options.rehearse
    known = pieces(Setting(options.rehearse, options.jax_folder, tuple(shlex.split(options.verify)), fla))
    names = [piece.name for piece in known]
    for name in (*options.only, *options.skip):
        if name not in names:
            parser.error(f"unknown piece {name!r}; there are {', '.join(names)}")
    chosen = [p for p in known if p.name not in options.skip and (not options.only or p.name in options.only)]
    queue = Queue(options)
    if options.list:
        print("\n".join(queue.line(piece) for piece in chosen))
        return 0
    return queue.run(chosen)


def _parser() -> argparse.ArgumentParser:
    """The options, without libraries that come as wheels."""
    parser = argparse.ArgumentParser("python -m benchmarks.on_device", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="time of this call; default: 9")
    add("--out", type=Path, default=Path("on_device"), metavar="DIR", help=f"directory of {RESULTS} and {LOG}")
    add("--state", type=Path, default=Path("on_device_state"), metavar="DIR", help="where a later call finds results")
    add("--only", nargs="+", default=(), metavar="PIECE", help="pieces to run; default: all")
    add("--skip", nargs="+", default=(), metavar="PIECE", help="pieces to leave out")
    add("--tasks", nargs="+", default=(), metavar="TASK", help="tasks to run, such as a mixer; default: all")
    add("--again", action="store_true", help="run answered tasks too")
    add("--list", action="store_true", help="print the pieces and stop; needs no device")
    add("--rehearse", action="store_true", help="tiny sizes on a CPU, without what needs CUDA")
    add("--wheels", type=Path, metavar="DIR", help="wheels of missing packages, unpacked below --state")
    add("--jax-folder", default="", metavar="DIR", help="an installed second JAX, for the pieces that ask for it")
    add(
        "--verify",
        default="",
        metavar="WORDS",
        help="options of pallas_kernels.verify; default: --ops without certificate",
    )
    add("--commit", help="commit of this code; default: from git")
    return parser


class Queue:
    """Tasks, their results in the state directory, and the results of all."""

    def __init__(self, command: argparse.Namespace):
        self._command = command
        self._end = time.monotonic() + 60 * command.minutes
        self._commit = command.commit or _commit()
        self._site = ""
        self._failed = False
        self._kept: dict[str, Any] = {}
        files = [*sorted(KEPT.glob("on_device*.json")), command.state / RESULTS]
        for file in files:
            if file.exists():
                self._kept |= json.loads(file.read_text())

    def answered(self, piece: Piece, task: Task) -> bool:
        """Whether a task has a result of the same command and sources."""
        kept = self._kept.get(name_of(piece, task), {})
        return not self._command.again and kept.get("status") == "done" and kept["key"] == task.key

    def line(self, piece: Piece) -> str:
        """Estimated seconds, state and reason of a piece."""
        left = [task for task in piece.tasks if not self.answered(piece, task)]
        state = f"{len(left)} of {len(piece.tasks)} tasks" if left else "answered"
        seconds = piece.compile_s + piece.seconds * len(left) if left else 0
        return f"{piece.name:18} {seconds:4} s  {state:14}  {piece.reason}"

    def run(self, chosen: Sequence[Piece]) -> int:
        """Runs what is not answered; returns the exit status."""
        for directory in (self._command.state, self._command.out):
            directory.mkdir(parents=True, exist_ok=True)
        self._site = unpack(self._command.wheels, self._command.state / "site")
        left = [(p, t) for p in chosen for t in p.tasks if not self.answered(p, t) and self._wanted(t)]
        left.sort(key=lambda pair: self._tried(*pair))
        while left and self._left() > 0:
            batch, seconds = [], self._left()
            while left and (not batch or (left[0][0].seconds < seconds and len(batch) < MOST_PROCESSES)):
                seconds -= left[0][0].seconds
                batch.append(left.pop(0))
            self._batch(batch)
        for piece, task in left:
            print(f"{name_of(piece, task)}: no time was left", flush=True)
        return int(self._failed)

    def _wanted(self, task: Task) -> bool:
        return not self._command.tasks or task.name in self._command.tasks

    def _tried(self, piece: Piece, task: Task) -> bool:
        """Whether the task failed before: it comes after all others."""
        return self._kept.get(name_of(piece, task), {}).get("status") == "failed"

    def _batch(self, batch: Sequence[Pair]) -> None:
        """Tasks whose programs compile side by side."""
        ahead = [pair for pair in batch if pair[0].how == "ahead"]
        processes: dict[Task, Process] = {}
        try:
            start = time.monotonic()
            for pair in ahead:
                processes[pair[1]] = self._start(*pair, niceness=10)
            for pair in batch:
                if pair[0].how == "check":
                    self._finish(*pair, self._start(*pair))
            patience = start + max((2 * piece.compile_s for piece, _ in ahead), default=0) - time.monotonic()
            all_wait(list(processes.values()), min(patience, self._left() - sum(p.seconds for p, _ in ahead)))
            for piece, task in batch:
                if piece.how != "check":
                    self._finish(piece, task, processes.get(task) or self._start(piece, task))
        finally:
            for process in processes.values():
                process.close()

    def _start(self, piece: Piece, task: Task, niceness: int = 0) -> Process:
        folder = self._folder(piece, task)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        minutes = max(min(self._left(), piece.timeout) - MARGIN, 1) / 60
        values = {"out": folder / "result.json", "folder": folder, "minutes": f"{minutes:.2f}", "site": self._site}
        words = [word.format(**values) for word in task.words]
        paths = [piece.python_path, self._site, os.environ.get("PYTHONPATH", ""), os.getcwd()]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "JAX_COMPILATION_CACHE_DIR": str(self._command.state.absolute() / "xla"),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **({"JAX_PLATFORMS": "cpu"} if self._command.rehearse else {}),
            **piece.environment,
        }
        return Process(words, folder / "task", environment, niceness)

    def _finish(self, piece: Piece, task: Task, process: Process) -> None:
        """Gives a task its turn, and keeps its result."""
        start = time.monotonic()
        if piece.how == "ahead" and not process.waits():
            process.close()
            told, status = "not compiled in time", None
        else:
            status = process.result(max(0.0, min(piece.timeout, self._left())))
            told = {0: "done", None: "stopped"}.get(status, "failed")
        self._failed |= told == "failed"
        folder = self._folder(piece, task)
        found = {file.name: _read(file) for file in sorted(folder.glob("*.json"))}
        row = {
            "status": told,
            "key": task.key,
            "commit": self._commit,
            "seconds": round(time.monotonic() - start, 1),
            "command": " ".join(task.words),
            "environment": dict(piece.environment),
            "result": next(iter(found.values())) if len(found) == 1 else found,
        }
        self._kept[name_of(piece, task)] = row
        text = json.dumps(self._kept, indent=1) + "\n"
        write_whole(self._command.state / RESULTS, text)
        write_whole(self._command.out / RESULTS, text)
        log = (folder / "task.log").read_text(errors="replace")[-KEPT_LOG:]
        with (self._command.out / LOG).open("a") as logs:
            logs.write(f"=== {name_of(piece, task)}: {told}, exit status {status}, {row['seconds']} s\n{log}\n")
        print(f"{name_of(piece, task)}: {told}, {row['seconds']} s; {self._left():.0f} s left", flush=True)

    def _folder(self, piece: Piece, task: Task) -> Path:
        return self._command.state.absolute() / re.sub(r"[^\w.]+", "-", name_of(piece, task))

    def _left(self) -> float:
        return self._end - time.monotonic()


def name_of(piece: Piece, task: Task) -> str:
    """Name of a result."""
    return piece.name if task.name == piece.name else f"{piece.name}: {task.name}"


def unpack(wheels: Path | None, site: Path) -> str:
    """Unpacks the wheels of a directory, once, into one that Python imports from; returns its path, "" without any."""
    if wheels is None:
        return ""
    for file in sorted(wheels.glob("*.whl")):
        if not list(site.glob(f"{file.name.split('-')[0]}-*.dist-info")):
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(site)
    return str(site.absolute())


def _read(file: Path) -> Any:
    """What a file of JSON holds; its text where a process was killed while it wrote."""
    text = file.read_text()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
