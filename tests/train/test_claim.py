"""Claims of a directory, with machines that are feigned by another boot id."""

import json
import threading
import time

import pytest

from jaxzoo.train import claim
from jaxzoo.train.claim import Claim, InUseError

LEASE = 0.9


@pytest.fixture
def elsewhere(tmp_path):
    """`elsewhere(number)`: a claim of another machine, just touched."""

    def elsewhere(number=1):
        file = tmp_path / f".claim.{number}"
        file.write_text(json.dumps({"host": "b", "boot": "x", "pid": 7}))
        return file

    return elsewhere


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def take(directory):
    ours = Claim(directory, lease=LEASE)
    ours.take()
    return ours


def test_one_machine_needs_no_lease(tmp_path):
    """Kills: two processes of a machine in one directory, and a killed one that makes the next wait."""
    ours = take(tmp_path)
    with pytest.raises(InUseError, match="is in use by another training process; wait for it"):
        take(tmp_path)
    ours.release()
    assert files(tmp_path) == []
    (tmp_path / ".claim.3").write_text(json.dumps({"host": "a", "boot": claim._boot(), "pid": 7}))
    start = time.monotonic()
    take(tmp_path).release()
    assert time.monotonic() - start < LEASE / 2
    assert files(tmp_path) == []


def test_a_living_process_elsewhere_is_not_disturbed(tmp_path, elsewhere, capsys):
    """Kills: a lock of this machine taken for one of all."""
    file, done = elsewhere(), threading.Event()

    def live():
        while not done.wait(LEASE / 4):
            file.touch()

    threading.Thread(target=live, daemon=True).start()
    with pytest.raises(InUseError, match="is in use by process 7 on b"):
        take(tmp_path)
    done.set()
    assert files(tmp_path) == [".claim.1"]
    assert "waiting up to 1 s for a sign of life" in capsys.readouterr().err


def test_a_dead_process_elsewhere_is_waited_for_and_replaced(tmp_path, elsewhere):
    """Kills: a claim that a killed process leaves for ever, one that is taken before the lease is over."""
    elsewhere(4)
    start = time.monotonic()
    ours = take(tmp_path)
    assert time.monotonic() - start > LEASE - 0.1
    assert files(tmp_path) == [".claim.5"]
    ours.release()


def test_the_claim_is_kept_alive(tmp_path):
    """Kills: a holder that others take for dead while it works."""
    ours = take(tmp_path)
    file = tmp_path / ".claim.1"
    before = file.stat().st_mtime
    time.sleep(LEASE)
    assert file.stat().st_mtime > before
    ours.release()


@pytest.mark.parametrize("dead", [True, False])
def test_of_many_machines_one_has_it(tmp_path, elsewhere, monkeypatch, dead):
    """Kills: two that take the place of the same dead process, or that find an empty directory at once."""
    monkeypatch.setattr(claim, "_lock", lambda directory: None)  # as if each ran on a machine of its own
    if dead:
        elsewhere()
    won, lost, start = [], [], threading.Barrier(8)

    def contend():
        start.wait()
        try:
            won.append(take(tmp_path))
        except InUseError:
            lost.append(1)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    won[0].release()


def test_who_was_suspended_for_too_long_ends(tmp_path, capsys):
    """Kills: two processes that write to one run, since the first does not know that it was taken for dead."""
    ended = threading.Event()
    ours = Claim(tmp_path, lease=LEASE, end=lambda status: ended.set())
    ours.take()
    (tmp_path / ".claim.1").unlink()
    assert ended.wait(5)
    assert "has been taken over by another process" in capsys.readouterr().err
    ours.release()
