"""Queue of measurements on a rented GPU: `python -m benchmarks.on_device --minutes 9 --out DIR`; see `--help`.

Each piece is a process; results are written after each. Pieces that time programs first compile concurrently, then use
the device one at a time (`turns.py`); pieces without timing run meanwhile. A second call with the same `--state`
continues. A piece is skipped if results in the repository or in `--state` were measured by the same command and
sources.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.linearization import INPUTS
from benchmarks.on_device_pieces import Piece, pieces
from benchmarks.sweep_piece import UNFINISHED
from benchmarks.turns import Process, all_wait
from jaxzoo.utils.whole_files import write_whole

KEPT = Path("benchmarks/results")
"""Results of earlier queues: `on_device*.json`."""
RESULTS, LOG = "on_device.json", "on_device.log"
KEPT_LOG = 30_000
"""Number of final characters of each log that are kept."""
COMPILE_S = 150
"""Time limit for concurrent compilation of pieces; 16 layers took 35 s on 16 cores, 32 took 170 s."""
MARGIN = 10
"""Seconds before its timeout at which a command that knows its time should end."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.wheels is not None:
        sys.path.insert(0, unpack(options.wheels, options.state / "site"))
    fla = not options.rehearse and importlib.util.find_spec("fla") is not None
    verify = tuple(shlex.split(options.verify))
    inputs = (options.state / INPUTS).is_dir()
    known = pieces(rehearse=options.rehearse, fla=fla, inputs=inputs, jax_folder=options.jax_folder, verify=verify)
    names = {name for piece in known for name in (piece.name, piece.group)}
    for name in {*options.only, *options.skip} - names:
        parser.error(f"unknown piece {name!r}; there are {', '.join(dict.fromkeys(p.group for p in known))}")
    chosen = [p for p in known if not options.only or {p.name, p.group} & {*options.only}]
    chosen = [p for p in chosen if not {p.name, p.group} & {*options.skip}]
    queue = Queue(options)
    if options.list:
        print("\n".join(queue.lines(chosen)))
        return 0
    return queue.run(chosen)


def _parser() -> argparse.ArgumentParser:
    """Makes the parser without libraries that are installed from wheels."""
    parser = argparse.ArgumentParser("python -m benchmarks.on_device", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="time of this call; default: 9")
    add("--out", type=Path, default=Path("on_device"), metavar="DIR", help=f"directory of {RESULTS} and {LOG}")
    add("--state", type=Path, default=Path("on_device_state"), metavar="DIR", help="where a later call finds results")
    add("--only", nargs="+", default=(), metavar="PIECE", help="pieces or groups to run; default: all")
    add("--skip", nargs="+", default=(), metavar="PIECE", help="pieces or groups to leave out")
    add("--again", action="store_true", help="run answered pieces too")
    add("--list", action="store_true", help="print the pieces and stop; needs no device")
    add("--rehearse", action="store_true", help="tiny sizes on a CPU, without what needs CUDA")
    add("--wheels", type=Path, metavar="DIR", help="wheels of missing packages, unpacked below --state")
    add("--jax-folder", default="", metavar="DIR", help="an installed second JAX, for the pieces that ask for it")
    add("--verify", default="", metavar="WORDS", help="options of pallas_kernels.verify; default: --ops without proof")
    add("--commit", help="commit of this code; default: from git")
    return parser


class Queue:
    def __init__(self, command: argparse.Namespace):
        self._command = command
        self._end = time.monotonic() + 60 * command.minutes
        self._commit = command.commit or _said_by("git", "describe", "--always", "--dirty") or "unknown"
        self._device = _said_by("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").partition("\n")[0]
        self._rows = _read(command.state / RESULTS) or {}
        self._kept: dict[str, Any] = {}
        for file in sorted(KEPT.glob("on_device*.json")):
            self._kept |= _read(file)

    def answered(self, piece: Piece) -> bool:
        """Returns whether a piece has a result of the same command and sources, and of this device if there is one."""
        for row in (self._rows.get(piece.name), self._kept.get(piece.name)):
            if row and row["status"] == "done" and row["key"] == piece.key and not self._command.again:
                return not self._device or row["device"] == self._device
        return False

    def lines(self, chosen: Sequence[Piece]) -> list[str]:
        """Returns estimated seconds, state and reason of each group."""
        found = []
        for group in dict.fromkeys(piece.group for piece in chosen):
            mine = [piece for piece in chosen if piece.group == group]
            left = [piece for piece in mine if not self.answered(piece)]
            state = f"{len(left)} of {len(mine)} pieces"
            found.append(f"{group:18} {sum(p.seconds for p in left):4} s  {state:16} {mine[0].reason}")
        return [*found, "and at most 150 s of compilation for as many pieces as there are cores"]

    def run(self, chosen: Sequence[Piece]) -> int:
        """Runs pieces without a result; returns the exit status."""
        for directory in (self._command.state, self._command.out):
            directory.mkdir(parents=True, exist_ok=True)
        left = [piece for piece in chosen if not self.answered(piece)]
        left.sort(key=lambda piece: self._status(piece.name) == "failed")  # these come last
        ran = [piece.name for piece in left]
        while left and self._left() > 0:
            batch, seconds = [], self._left()
            while left and (not batch or (left[0].seconds < seconds and len(batch) < (os.cpu_count() or 1))):
                seconds -= left[0].seconds
                batch.append(left.pop(0))
            self._batch(batch)
        for piece in left:
            print(f"{piece.name}: no time was left", flush=True)
        return int(any(self._status(name) == "failed" for name in ran))

    def _status(self, name: str) -> str:
        return self._rows.get(name, {}).get("status", "")

    def _batch(self, batch: Sequence[Piece]) -> None:
        """Runs pieces whose programs compile concurrently."""
        ahead = [piece for piece in batch if piece.how == "ahead"]
        processes: dict[str, Process] = {}
        try:
            start = time.monotonic()
            for piece in ahead:
                processes[piece.name] = self._start(piece, niceness=10)
            for piece in batch:
                if piece.how == "check":
                    self._finish(piece, self._start(piece))
            patience = start + COMPILE_S - time.monotonic()
            all_wait(list(processes.values()), min(patience, self._left() - sum(p.seconds for p in ahead)))
            for piece in batch:
                if piece.how != "check":
                    self._finish(piece, processes.get(piece.name) or self._start(piece))
        finally:
            for process in processes.values():
                process.close()

    def _start(self, piece: Piece, niceness: int = 0) -> Process:
        folder = self._folder(piece)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        minutes = max(min(self._left(), piece.timeout) - MARGIN, 1) / 60
        values = {"out": folder / "result.json", "folder": folder, "state": self._command.state}
        values |= {"minutes": f"{minutes:.2f}", "fla": _fla()}
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (piece.python_path, *sys.path, os.getcwd()))),
            "JAX_COMPILATION_CACHE_DIR": str(self._command.state.absolute() / "xla"),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **({"JAX_PLATFORMS": "cpu"} if self._command.rehearse else {}),
            **piece.environment,
        }
        return Process([word.format(**values) for word in piece.words], folder / "piece", environment, niceness)

    def _finish(self, piece: Piece, process: Process) -> None:
        """Lets a piece time its programs, and keeps its result."""
        start, status, told = time.monotonic(), None, "not compiled in time"
        if piece.how != "ahead" or process.waits():
            status = process.result(max(0.0, min(piece.timeout, self._left())))
            told = {0: "done", None: "stopped", UNFINISHED: "stopped"}.get(status, "failed")
        process.close()
        folder = self._folder(piece)
        found = {file.name: _read(file) for file in sorted(folder.glob("*.json"))}
        row = {
            "status": told,
            "key": piece.key,
            "commit": self._commit,
            "device": self._device,
            "seconds": round(time.monotonic() - start, 1),
            "command": " ".join(piece.words),
            "environment": dict(piece.environment),
            "result": next(iter(found.values())) if len(found) == 1 else found,
        }
        self._rows[piece.name] = row
        for directory in (self._command.state, self._command.out):
            write_whole(directory / RESULTS, json.dumps(self._rows, indent=1) + "\n")
        log = (folder / "piece.log").read_text(errors="replace")[-KEPT_LOG:]
        with (self._command.out / LOG).open("a") as logs:
            logs.write(f"=== {piece.name}: {told}, exit status {status}, {row['seconds']} s\n{log}\n")
        print(f"{piece.name}: {told}, {row['seconds']} s; {self._left():.0f} s left", flush=True)

    def _folder(self, piece: Piece) -> Path:
        return self._command.state.absolute() / re.sub(r"[^\w.]+", "-", piece.name)

    def _left(self) -> float:
        return self._end - time.monotonic()


def unpack(wheels: Path, site: Path) -> str:
    """Unpacks the wheels of a directory, and returns the directory to import them from."""
    for file in wheels.glob("*.whl"):
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(site)
    return str(site.absolute())


def _fla() -> str:
    """Returns the directory of flash-linear-attention; "" if it is not installed."""
    spec = importlib.util.find_spec("fla")
    return "" if spec is None else str(Path(str(spec.origin)).parents[1])


def _read(file: Path) -> Any:
    """Reads a JSON file; returns None if it is absent, its text if it is incomplete (a killed process)."""
    if not file.exists():
        return None
    text = file.read_text()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _said_by(*command: str) -> str:
    """Returns the output of a command; "" if the command is absent."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
