"""Trial of a command on a damaged file: run in this process, with limits of time and memory."""

import contextlib
import hashlib
import importlib
import io
import os
import re
import resource
import shutil
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECONDS = 30
"""Time of a command, on an idle machine."""
MEMORY = 2 * 2**30
"""Bytes that a command may add to the address space."""
TIMES = re.compile(r"[\d,.]+ (?:s|MB/s|tokens/s)\b|\d+s after compilation")
"""Parts of an output that differ between two equal runs."""


VARIES = re.compile("new/(checkpoints/|events|speed|learning_curve)")
"""Files that hold times or random names, and so differ between two equal runs."""


class Case(NamedTuple):
    """A file, and a command that reads it."""

    name: str
    file: str
    """Path in the world."""
    command: str
    """Module in `jaxzoo.cli`."""
    words: tuple[str, ...]
    is_ours: bool = True
    """Whether we wrote the file, so that the numbers must be identical; a user's own file may be anything."""


class Outcome(NamedTuple):
    """End of a command."""

    status: int
    output: str
    """Standard output without times."""
    error: str
    """Standard error, or the traceback of an exception."""
    files: dict[str, str]
    """Digests of the files in the world after it."""


class Hang(BaseException):
    """Command that does not end in time."""


def run(world: Path, case: Case) -> Outcome:
    """Runs the command in the world."""
    out, err = io.StringIO(), io.StringIO()
    main = importlib.import_module(f"jaxzoo.cli.{case.command}").main
    with _limits(), contextlib.chdir(world), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status, error = main(list(case.words)), ""
        except BaseException as failure:  # of Rust and C++ as well
            if isinstance(failure, KeyboardInterrupt):
                raise
            status, error = -1, "".join(traceback.format_exception(failure))
    return Outcome(status, TIMES.sub("#", out.getvalue()), error or err.getvalue(), digests(world))


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    def hang(*_: object) -> None:
        raise Hang

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS * int(os.environ.get("FUZZ_PATIENCE", "1")))
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def digests(world: Path) -> dict[str, str]:
    """Digests of all files by their paths."""
    return {
        str(file.relative_to(world)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(world.rglob("*"))
        if file.is_file() and not VARIES.match(str(file.relative_to(world)))
    }


def judge(case: Case, before: Outcome, found: Outcome) -> str:
    """`same`, `refused`, `accepted` (a user's own file), or what is wrong: `SILENT`, `WROTE` or `BROKEN`."""
    if found.status == 0:
        mine = {name: digest for name, digest in found.files.items() if name != case.file}
        rest = {name: digest for name, digest in before.files.items() if name != case.file}
        if not case.is_ours:
            return "accepted"
        return "same" if (found.output, mine) == (before.output, rest) else "SILENT"
    lines = found.error.splitlines()
    said = [line for line in lines if line.startswith("error: ") and len(line) < 2000]
    is_refused = found.status == 2 and len(said) == 1 and lines[-1] == said[0] and "Traceback" not in found.error
    return "refused" if is_refused else "BROKEN"


def trials(
    pristine: Path, place: Path, case: Case, contents: Iterator[tuple[str, bytes]]
) -> Iterator[tuple[str, str, Outcome]]:
    """Yields the damage, the verdict and the outcome of each trial of a case, each in a fresh copy of the world."""
    copied(pristine, place)
    before = run(place, case)
    assert before.status == 0, f"{case.name}: {before.error}"
    for name, content in contents:
        copied(pristine, place)
        (place / case.file).write_bytes(content)
        outside = digests(place.parent / "outside")
        found = run(place, case)
        verdict = judge(case, before, found)
        if digests(place.parent / "outside") != outside:
            verdict = "WROTE"
        yield name, verdict, found


def copied(pristine: Path, place: Path) -> None:
    """Makes a fresh copy of the world."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(pristine, place)
