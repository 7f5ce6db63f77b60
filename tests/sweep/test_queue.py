"""The queue of runs. Kills: two workers on one run, a run that no worker takes again."""

import os
import subprocess
import sys

import pytest

from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.sweep.queue import MOST_ATTEMPTS, RunQueue
from jaxzoo.utils import work_queue


@pytest.fixture
def directory(tmp_path) -> SweepDirectory:
    made = SweepDirectory(tmp_path / "sweep")
    made.create(About("figure.py", "laptop"))
    return made


def test_a_run_has_one_worker(directory):
    """Kills: two workers at one run; a run that is taken again when it has a result or has failed."""
    with RunQueue(directory, "first") as first, RunQueue(directory, "second") as second:
        assert first.take("a")
        assert not second.take("a")
        assert not first.take("a")
        directory.write_result("b", {"steps": 1})
        directory.write_failure("c", {"error": "no"})
        assert not second.take("b")
        assert not second.take("c")
        assert second.take("d")
        assert {run: told["worker"] for run, told in directory.queue().progress().items()} == {
            "a": "first",
            "d": "second",
        }


def test_released_runs_are_free(directory):
    """Kills: a lock that outlives its worker's end, a report of a run that nobody makes, an attempt that is counted
    though nothing was lost."""
    with RunQueue(directory, "first") as first:
        assert first.take("a")
        assert first.take("b")
        first.release("a")
        with RunQueue(directory, "second") as second:
            assert second.take("a")
    assert not directory.queue().is_held("b")
    assert not directory.queue().progress()
    with RunQueue(directory, "third") as third:
        assert third.take("b")
        assert directory.queue().progress()["b"] == {"attempt": 1, "worker": "third"}


def test_a_silent_worker_keeps_its_run(directory):
    """Kills: a run that a second worker takes while the first one is silent, during a long compilation or on a full
    disk."""
    with RunQueue(directory, "silent") as silent, RunQueue(directory, "second") as second:
        assert silent.take("a")
        os.utime(directory.running("a", "json"), (0, 0))
        assert not second.take("a")
        assert directory.queue().is_held("a")


@pytest.fixture
def killed(directory):
    """Lets a process take a run and kills it."""

    def kill(run: str) -> None:
        code = "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(flush=True); input()"
        command = [sys.executable, "-c", code, str(directory.running(run, "lock"))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            assert worker.stdout
            worker.stdout.readline()
            assert directory.queue().is_held(run)
            with RunQueue(directory, "other") as other:
                assert not other.take(run)
            worker.kill()

    return kill


def test_a_killed_worker_s_run_is_free_at_once(directory, killed):
    """Kills: a lost worker's runs that stay lost, or wait for a lease to end."""
    killed("a")
    assert not directory.queue().is_held("a")
    with RunQueue(directory, "second") as second:
        assert second.take("a")


def test_a_run_that_kills_its_workers_is_given_up(directory):
    """Kills: a run that needs too much memory and kills one worker after the other forever."""
    for i in range(MOST_ATTEMPTS):
        lost = RunQueue(directory, f"worker{i}")
        assert lost.take("a")
        lost._locks["a"].release()  # as the end of the process does
        assert directory.queue().progress()["a"]["attempt"] == i + 1
    with RunQueue(directory, "last") as last:
        assert not last.take("a")
        assert last.take("b")
    assert "killed 3 times, perhaps because memory ran out" in directory.failure("a")["error"]
    directory.forget_failures()
    assert directory.failed() == set()
    with RunQueue(directory, "after") as after:
        assert after.take("a")


@pytest.mark.parametrize("kind", ["result", "failure"])
def test_a_run_that_ends_while_we_look_is_not_made_again(directory, monkeypatch, kind):
    """Kills: a run that has just failed, or is just done, and is made once more."""
    real = work_queue.WorkQueue._lock

    def after_the_other(queue, run):
        getattr(directory, f"write_{kind}")(run, {"error": "no"})
        return real(queue, run)

    monkeypatch.setattr(work_queue.WorkQueue, "_lock", after_the_other)
    with RunQueue(directory, "second") as second:
        assert not second.take("a")
    monkeypatch.undo()
    assert not directory.queue().is_held("a")


def test_progress_is_reported_now_and_then(directory, monkeypatch):
    """Kills: a file written at every step, a report without the loss, one of another run."""
    now = [100.0]
    monkeypatch.setattr(work_queue.time, "monotonic", lambda: now[0])
    with RunQueue(directory, "first") as first:
        assert first.take("a")
        first.tell("a", step=3, steps=10)
        assert "step" not in directory.queue().progress()["a"]
        now[0] += work_queue.TELL_SECONDS
        first.tell("a", loss=0.5)
        assert directory.queue().progress() == {
            "a": {"attempt": 1, "worker": "first", "step": 3, "steps": 10, "loss": 0.5}
        }
