"""Which worker has which run."""

import contextlib
import os
import time

import pytest

from jaxzoo.claims import MOST_ATTEMPTS, Queue, bury, living, newest_claims, news
from jaxzoo.sweep.directory import About, SweepDirectory


@pytest.fixture
def directory(tmp_path) -> SweepDirectory:
    made = SweepDirectory(tmp_path / "sweep")
    made.create(About("figure.py", "laptop"))
    return made


@pytest.fixture
def worker(directory):
    """`worker(name, lease=...)`: a living worker's queue."""
    with contextlib.ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(Queue(directory, name, **options))


def test_a_run_has_one_worker(directory, worker):
    """Kills: two workers at one run; a run that is taken again when it has a result or has failed."""
    first, second = worker("first"), worker("second")
    assert first.take("a")
    assert not second.take("a")
    assert not first.take("a")
    assert first.holds("a")
    assert not second.holds("a")
    directory.write_result("b", {"steps": 1})
    directory.write_failure("c", {"error": "no"})
    assert not second.take("b")
    assert not second.take("c")
    assert second.take("d")


def test_released_runs_are_free(directory, worker):
    """Kills: a claim that outlives its worker's good-bye; an attempt that is counted though nothing was lost."""
    with Queue(directory, "first") as first:
        assert first.take("a")
        assert first.take("b")
        first.release("a")
        assert worker("second").take("a")
    assert "first" not in living(directory)
    third = worker("third")
    assert third.take("b")
    assert newest_claims(directory)["b"] == ("third", 1)


def test_a_dead_worker_is_replaced_once(directory, worker):
    """Kills: a lost worker's runs that stay lost; two successors; a dead one that comes back and writes its result."""
    dead = worker("dead", lease=1000.0)
    assert dead.take("a")
    os.utime(directory.workers / "dead.json", (time.time() - 3600,) * 2)
    second, third = worker("second", lease=30.0), worker("third", lease=30.0)
    assert second.take("a")
    assert not third.take("a")
    assert newest_claims(directory)["a"] == ("second", 2)
    os.utime(directory.workers / "dead.json")
    assert not dead.holds("a")
    assert second.holds("a")
    dead.release("a")
    assert second.holds("a")


def test_a_buried_worker_is_replaced_before_the_lease_ends(directory, worker):
    """Kills: waiting a minute and a half for a process that is known to be gone."""
    assert worker("dead").take("a")
    assert not worker("second").take("a")
    bury(directory, ["dead", "never lived"])
    assert worker("third").take("a")


def test_a_silent_worker_is_dead_and_a_beating_one_is_not(directory, worker):
    """Kills: signs of life that are not given, or not looked at."""
    worker("beating", lease=1.5)
    worker("silent", lease=1000.0)
    time.sleep(2.0)
    assert living(directory, 1.5) == {"beating"}


def test_a_run_that_ends_its_workers_is_given_up(directory):
    """Kills: a run that needs too much memory and kills one worker after the other for ever."""
    for i in range(MOST_ATTEMPTS):
        queue = Queue(directory, f"worker{i}")
        queue.__enter__()
        assert queue.take("a")
        bury(directory, [f"worker{i}"])
        queue._ended.set()
    with Queue(directory, "last") as last:
        assert not last.take("a")
        assert last.take("b")
    assert "killed, perhaps for memory" in directory.failure("a")["error"]
    directory.forget_failures()
    assert directory.failed() == set()
    with Queue(directory, "after") as after:
        assert after.take("a")
    assert not newest_claims(directory)


def test_what_workers_tell(directory, worker):
    """Kills: a board that shows nothing of runs under way, or those of the dead."""
    queue = worker("first", lease=1.0)
    queue.take("a")
    queue.tell("a", step=3, steps=10)
    queue.tell("a", score=0.5)
    deadline = time.monotonic() + 20
    while news(directory).get("a") != {"step": 3, "steps": 10, "score": 0.5} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert news(directory)["a"] == {"step": 3, "steps": 10, "score": 0.5}
    queue.release("a")
    bury(directory, ["first"])
