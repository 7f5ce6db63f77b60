"""Jobs shared by processes. Kills: a job made twice, or never after a worker died."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxzoo.data.resumable import Job, ResumableDirectory
from jaxzoo.utils.whole_files import write_json


def note(log: Path, seconds: float, job: Job) -> None:
    """Does a job: writes its note and a line with the process id to the shared log."""
    with log.open("a") as file:
        file.write(f"{job.note.stem} {os.getpid()}\n")
    time.sleep(seconds)
    write_json(job.note, job.note.stem)


def fail(log: Path, seconds: float, job: Job) -> None:
    if job.note.stem == "p-1":
        raise ValueError(f"{log}: p-1 is bad")
    note(log, seconds, job)


def die(log: Path, seconds: float, job: Job) -> None:
    if job.note.stem == "p-1":
        os.kill(os.getpid(), signal.SIGKILL)
    note(log, seconds, job)


def share(make, folder: Path, n: int, seconds: float = 0.0, **options) -> bool:
    """Makes n jobs, and a result with their names."""
    work = ResumableDirectory(folder / "out", {"n": n})
    jobs = {f"p-{i}": (folder / "log", seconds) for i in range(n)}
    return work.make(make, jobs, lambda: work.write_manifest({"jobs": sorted(jobs)}), **options)


def made(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "log").read_text().splitlines()]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


COMMAND = """
import sys
from pathlib import Path
from tests.data.test_resumable import note, share
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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
def test_makes_each_job_once(folder, workers):
    """Kills: a job that is done and made again, or never; progress that miscounts; unfinished work that stays."""
    reports = []
    with pytest.raises(ValueError, match="p-1 is bad"):
        share(fail, folder, 2, workers=1)
    assert made(folder) == ["p-0"]
    for is_new in (True, False):
        assert share(note, folder, 2, workers=workers, report=lambda *news: reports.append(news)) is is_new
    assert made(folder) == ["p-0", "p-1"]
    assert reports == [("p-1", 2, 2)]
    assert left(folder) == ["manifest.json"]


def test_a_killed_process_is_one_line(folder):
    """Kills: a hang, or a traceback of a broken pipe, when the system kills a process for memory."""
    message = r"p-1.*: the process that made it was killed, perhaps for memory; the same comm"
    with pytest.raises(ChildProcessError, match=message) as died:
        share(die, folder, 3, workers=2)
    assert "\n" not in str(died.value)
    assert share(note, folder, 3, workers=2)
    assert left(folder) == ["manifest.json"]


@pytest.mark.full
def test_commands_share_the_jobs(folder):
    """Kills: two commands that make the same jobs, one that ends before the others' jobs are done."""
    commands = [start(folder, 12, 0.25, workers) for workers in (1, 2, 1)]
    for command in commands:
        out, err = command.communicate(timeout=60)
        assert (command.returncode, out, err) == (0, "begun\n", "")
        assert left(folder) == ["manifest.json"]
    assert sorted(made(folder)) == sorted(f"p-{i}" for i in range(12))
    assert len({line.split()[1] for line in (folder / "log").read_text().splitlines()}) > 1


def test_a_command_that_begins_while_another_finishes(folder, monkeypatch):
    """Kills: results of this plan that are taken for something else, because they appear while a command looks."""
    assert share(note, folder, 2)
    answers = iter([False])
    monkeypatch.setattr(
        ResumableDirectory, "is_finished", property(lambda self: next(answers, (self.path / self.result).is_file()))
    )
    ResumableDirectory(folder / "out", {"n": 2})
    with pytest.raises(ValueError, match="holds other results: n is 2 there and 3 here"):
        ResumableDirectory(folder / "out", {"n": 3})


@pytest.mark.full
def test_a_command_in_another_container_is_not_taken_for_dead(folder):
    """Kills: a live command whose process id means nothing here, and whose job is made a second time.

    Containers of one machine may have its host name, and process ids of their own.
    """
    elsewhere = start(folder, 1, 3.0, 1, "import os\nos.getpid = lambda: 2**30\n")
    until(lambda: (folder / "log").exists())
    share(note, folder, 1)
    out, err = elsewhere.communicate(timeout=60)
    assert (elsewhere.returncode, out, err) == (0, "begun\n", "")
    assert made(folder) == ["p-0"]


def test_plans_of_two_commands_that_begin_together(tmp_path):
    """Kills: a command that takes the results of another plan for its own, as there were none when it looked."""
    first, second = (ResumableDirectory(tmp_path / "out", {"length": length}) for length in (64, 128))
    parts = {"part-00000": ()}
    assert first.make(lambda job: write_json(job.note, {}), parts, lambda: first.write_manifest({}))
    with pytest.raises(ValueError, match="holds other results: length is 64 there and 128 here"):
        second.make(lambda job: write_json(job.note, {}), parts, lambda: second.write_manifest({}))
