"""Pieces of work, shared among processes and commands, some of which die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxzoo.data.pieces.resumable import ResumableDirectory
from jaxzoo.data.pieces.share_out import is_shared, share_out
from jaxzoo.utils.whole_files import write_json


def note(folder: Path, *seconds_and_file: Any) -> None:
    """Makes a piece: its file, after a line with this process in the common log."""
    *seconds, file = seconds_and_file
    with (folder / "log").open("a") as log:
        log.write(f"{file.stem} {os.getpid()}\n")
    time.sleep(*seconds or [0.0])
    file.with_suffix(".tmp").write_text(file.stem)
    file.with_suffix(".tmp").rename(file)


def fail(folder: Path, file: Path) -> None:
    if file.stem == "p1":
        raise ValueError(f"{folder}: p1 is bad")
    note(folder, file)


class AwkwardError(Exception):
    """Error that no pipe can carry."""

    def __init__(self, one: str, two: str):
        super().__init__(f"{one} and {two}")


def fail_awkwardly(folder: Path, file: Path) -> None:
    raise AwkwardError("this", "that")


def die(folder: Path, file: Path) -> None:
    if file.stem == "p1":
        os.kill(os.getpid(), signal.SIGKILL)
    note(folder, file)


def make_nothing(folder: Path, file: Path) -> None:
    pass


def share(make, folder: Path, n: int, *more: object, workers: int = 1, **options) -> None:
    pieces = {folder / f"p{i}.done": (folder, *more) for i in range(n)}
    share_out(make, pieces, workers=workers, claims=folder / ".claims", **options)


def made(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "log").read_text().splitlines()]


COMMAND = """
import sys
from pathlib import Path
from tests.data.pieces.test_share_out import note, share
if __name__ == "__main__":
    folder, n, seconds, workers = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    print("begun", flush=True)
    share(note, folder, n, seconds, workers=workers)
"""


def start(folder: Path, n: int, seconds: float, workers: int, first_line: str = "") -> subprocess.Popen:
    script = folder.parent / f"command{len(first_line)}.py"
    if not script.exists():  # a command that begins must not find it cut
        script.write_text(first_line + COMMAND)
    words = [sys.executable, str(script), str(folder), str(n), str(seconds), str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
def test_makes_each_piece_once(folder, workers):
    """Kills: a piece that is done and made again, or never; progress that miscounts; claims that stay behind."""
    (folder / "p2.done").touch()
    reports = []
    for _ in range(2):
        share(note, folder, 5, workers=workers, report=lambda *news: reports.append(news))
    assert sorted(made(folder)) == ["p0", "p1", "p3", "p4"]
    assert sorted(name for name, _, _ in reports) == ["p0", "p1", "p3", "p4"]
    assert [counts for _, *counts in reports] == [[2, 5], [3, 5], [4, 5], [5, 5]]
    assert sorted(path.name for path in folder.iterdir()) == ["log", *(f"p{i}.done" for i in range(5))]


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_ends_the_work(folder, workers):
    """Kills: an error that is lost in a process, or another error in its place."""
    with pytest.raises(ValueError, match=f"{folder}: p1 is bad"):
        share(fail, folder, 3, workers=workers)
    assert not (folder / ".claims").exists()
    with pytest.raises((AwkwardError, RuntimeError), match="this and that"):
        share(fail_awkwardly, folder, 3, workers=workers)
    with pytest.raises(RuntimeError, match=r"was made, but there is no .*done"):
        share(make_nothing, folder, 3, workers=workers)


def test_a_killed_process_is_one_line(folder):
    """Kills: a hang, or a traceback of a broken pipe, when the system kills a process for memory."""
    message = r"p1.*: the process that made it was killed, perhaps for memory; the same comm"
    with pytest.raises(ChildProcessError, match=message) as died:
        share(die, folder, 3, workers=2)
    assert "\n" not in str(died.value)
    share(note, folder, 3, workers=2)


@pytest.mark.full
def test_commands_share_the_pieces(folder):
    """Kills: two commands that make the same pieces, one that ends before the others' pieces are done."""
    commands = [start(folder, 12, 0.25, workers) for workers in (1, 2, 1)]
    for command in commands:
        out, err = command.communicate(timeout=60)
        assert (command.returncode, out, err) == (0, "begun\n", "")
        assert len(list(folder.glob("*.done"))) == 12
    assert sorted(made(folder)) == sorted(f"p{i}" for i in range(12))
    assert len({line.split()[1] for line in (folder / "log").read_text().splitlines()}) > 1
    assert not (folder / ".claims").exists()


@pytest.mark.slow
def test_a_killed_command_is_replaced(folder):
    """Kills: a piece that waits for a dead command's lock; processes that outlive the command that started them; a
    directory of locks that stays, and keeps a build from removing its unfinished work."""
    dead = start(folder, 2, 1000.0, 2)
    until(lambda: (folder / "log").exists() and len(made(folder)) == 2)
    assert is_shared(folder / ".claims")
    processes = [int(line.split()[1]) for line in (folder / "log").read_text().splitlines()]
    waiting = start(folder, 2, 0.0, 1)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "begun\n"
    time.sleep(1.0)
    assert waiting.poll() is None
    dead.kill()
    dead.communicate()
    assert waiting.wait(timeout=20) == 0
    waiting.communicate()
    assert len(made(folder)) == 4
    until(lambda: not any(_is_running(process) for process in processes))
    assert not is_shared(folder / ".claims")
    assert not (folder / ".claims").exists()


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.full
def test_a_command_in_another_container_is_not_taken_for_dead(folder):
    """Kills: a live command whose process id means nothing here, and whose piece is made a second time.

    Containers of one machine may have its host name, and process ids of their own.
    """
    elsewhere = start(folder, 1, 3.0, 1, "import os\nos.getpid = lambda: 2**30\n")
    until(lambda: (folder / "log").exists())
    share(note, folder, 1)
    out, err = elsewhere.communicate(timeout=60)
    assert (elsewhere.returncode, out, err) == (0, "begun\n", "")
    assert made(folder) == ["p0"]


def test_plans_of_two_commands_that_begin_together(tmp_path):
    """Kills: a command that takes the results of another plan for its own, as there were none when it looked."""
    first, second = (ResumableDirectory(tmp_path / "out", {"length": length}) for length in (64, 128))
    parts = {"part-00000": ()}
    assert first.make(lambda note: write_json(note, {}), parts, lambda: first.write_manifest({}))
    with pytest.raises(ValueError, match="holds other results: length is 64 there and 128 here"):
        second.make(lambda note: write_json(note, {}), parts, lambda: second.write_manifest({}))
