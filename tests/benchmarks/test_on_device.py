"""The queue for a rented GPU: order, time, turns, what a second call does, and a rehearsal of its pieces."""

import dataclasses
import itertools
import json

import pytest

from benchmarks import on_device
from benchmarks.on_device_pieces import Piece, Setting, Task, pieces

WAITS = "from benchmarks.turns import wait_for_turn; import json, time; wait_for_turn(); t = time.time(); "
"""Beginning of a script that gets a turn."""


def piece(name, *scripts, how="ahead", **fields):
    tasks = tuple(Task(name=f"{name}{i}", words=("-c", script), key=script) for i, script in enumerate(scripts))
    return Piece(name=name, reason="a test", seconds=1, tasks=tasks, how=how, compile_s=20, **fields)


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Runs the command with these pieces; returns the exit status and the results by name."""

    def run(*known, flags=""):
        monkeypatch.setattr(on_device, "pieces", lambda setting: list(known))
        words = f"--out {tmp_path / 'out'} --state {tmp_path / 'state'} {flags}".split()
        status = on_device.main(words)
        file = tmp_path / "out" / on_device.RESULTS
        return status, json.loads(file.read_text()) if file.exists() else {}

    return run


def test_tasks_are_timed_one_at_a_time_in_order_after_checks(queue):
    """Kills: two processes that use the device at once, a turn before all have compiled."""
    script = WAITS + "time.sleep(0.3); json.dump([t, time.time()], open(r'{out}', 'w'))"
    slow = "import time; time.sleep(0.5); " + script
    check = "import json, time; json.dump([time.time()] * 2, open(r'{out}', 'w'))"
    status, found = queue(piece("a", script, slow), piece("b", check, how="check"), piece("c", check, how="alone"))
    assert status == 0
    assert {row["status"] for row in found.values()} == {"done"}
    spans = [found[name]["result"] for name in ("b: b0", "a: a0", "a: a1", "c: c0")]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans


def test_a_second_call_runs_what_is_left_and_what_changed(queue, tmp_path):
    """Kills: work that is done twice, results that are lost where DIR is emptied, a stale answer."""
    script = "print('ran'); import json; json.dump(1, open(r'{out}', 'w'))"
    fails = piece("a", "import sys; sys.exit('no device')", how="alone")
    assert queue(fails, piece("b", script, how="alone"), flags="--only a")[0] == 1
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    status, found = queue(fails, piece("b", script, how="alone"))
    assert (status, {name: row["status"] for name, row in found.items()}) == (1, {"a: a0": "failed", "b: b0": "done"})
    log = (tmp_path / "out" / on_device.LOG).read_text()
    assert log.index("=== b: b0: done") < log.index("=== a: a0: failed"), "what failed before comes last"
    assert "no device" in log
    (tmp_path / "out" / on_device.LOG).unlink()
    other = dataclasses.replace(piece("b", script, how="alone").tasks[0], key="other sources")
    queue(piece("b", script, how="alone"))
    assert not (tmp_path / "out" / on_device.LOG).exists()
    queue(dataclasses.replace(piece("b", script, how="alone"), tasks=(other,)))
    assert "=== b: b0: done" in (tmp_path / "out" / on_device.LOG).read_text()


def test_time_limits_leave_the_results_of_the_others(queue):
    """Kills: a hang that takes the rest of the time; a task without time that is told as done."""
    hangs = piece("a", "import time; time.sleep(60)", how="alone", timeout=1)
    never = piece("b", "import time; time.sleep(60); " + WAITS)
    quick = piece("c", WAITS + "json.dump(1, open(r'{out}', 'w'))")
    never = dataclasses.replace(never, compile_s=1)
    status, found = queue(hangs, never, dataclasses.replace(quick, compile_s=1), flags="--minutes 0.2")
    statuses = {name: row["status"] for name, row in found.items()}
    assert statuses == {"a: a0": "stopped", "b: b0": "not compiled in time", "c: c0": "done"}
    assert status == 0
    late = dataclasses.replace(quick, name="d")
    assert "d: c0" not in queue(late, flags="--minutes 0.0001")[1]


def test_the_list_needs_no_device(capsys):
    """Kills: a list that starts JAX's devices, or leaves a piece out."""
    assert on_device.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [piece.name for piece in pieces(Setting(False))]


@pytest.mark.full
def test_a_rehearsal_runs_every_piece(tmp_path):
    """Kills: a piece whose command line or program is broken, which would show on the rented device."""
    words = f"--rehearse --minutes 9 --out {tmp_path / 'out'} --state {tmp_path / 'state'}".split()
    assert on_device.main(words) == 0, (tmp_path / "out" / on_device.LOG).read_text()
    found = json.loads((tmp_path / "out" / on_device.RESULTS).read_text())
    assert {row["status"] for row in found.values()} == {"done"}
    assert all(row["result"] for row in found.values())
    assert len(list((tmp_path / "out").iterdir())) == 2
