"""`python -m benchmarks.on_device`. Kills: a piece that is repeated, lost or broken."""

import dataclasses
import itertools
import json

import pytest

from benchmarks import kernel_counters, on_device, on_device_pieces
from benchmarks.on_device_pieces import Piece, pieces

WAITS = "from benchmarks.turns import wait_for_turn; import json, time; wait_for_turn(); t = time.time(); "
"""Beginning of a script that gets a turn."""
WRITES = "import json; json.dump(1, open(r'{out}', 'w'))"


def piece(name, script, how="ahead", **fields):
    return Piece(name=name, reason="a test", words=("-c", script), how=how, seconds=1, **fields)


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Runs the command with these pieces; returns the exit status, the results by name, and the log of this call."""
    monkeypatch.setattr(on_device.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(on_device, "KEPT", tmp_path / "kept")

    def run(*known, flags=""):
        monkeypatch.setattr(on_device, "pieces", lambda **_: list(known))
        out = tmp_path / "out"
        for file in out.glob("*"):
            file.unlink()
        status = on_device.main(f"--out {out} --state {tmp_path / 'state'} {flags}".split())
        files = [out / on_device.RESULTS, out / on_device.LOG]
        results, log = (file.read_text() if file.exists() else "" for file in files)
        return status, json.loads(results or "{}"), log

    return run


def test_pieces_are_timed_one_at_a_time_in_order_after_checks(queue):
    """Kills: two processes that use the device at once, a turn before all have compiled."""
    script = WAITS + "time.sleep(0.3); json.dump([t, time.time()], open(r'{out}', 'w'))"
    late = "import time; time.sleep(0.5); " + script
    now = "import json, time; json.dump([time.time()] * 2, open(r'{out}', 'w'))"
    made = piece("a: 1", script), piece("a: 2", late), piece("b", now, how="check"), piece("c", now, how="alone")
    status, found, _ = queue(*made)
    assert status == 0
    assert {row["status"] for row in found.values()} == {"done"}
    spans = [found[name]["result"] for name in ("b", "a: 1", "a: 2", "c")]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans


def test_a_second_call_runs_what_is_left(queue, tmp_path, monkeypatch):
    """Kills: work that is done twice, results that are lost where DIR is emptied, a stale answer."""
    fails = piece("a", "import sys; sys.exit('no device')", how="alone")
    works = piece("b", WRITES, how="alone")
    assert queue(fails, works, flags="--only a")[0] == 1
    status, found, log = queue(fails, works)
    assert (status, {name: row["status"] for name, row in found.items()}) == (1, {"a": "failed", "b": "done"})
    assert log.index("=== b: done") < log.index("=== a: failed"), "what failed before comes last"
    assert "no device" in log
    assert queue(works) == (0, {}, "")
    assert queue(works, flags="--again")[2]
    (tmp_path / "kept").mkdir()
    (tmp_path / "state" / on_device.RESULTS).rename(tmp_path / "kept" / "on_device-h200.json")
    assert queue(works) == (0, {}, "")
    changed = dataclasses.replace(works, environment={"XLA_FLAGS": ""})
    assert "=== b: done" in queue(changed)[2]
    monkeypatch.setattr(on_device, "_said_by", lambda *command: "another GPU")
    assert "=== b: done" in queue(works)[2]


def test_an_unfinished_sweep_goes_on_in_the_next_call(queue):
    """Kills: a sweep that counts as failed, or as done, when its time is over."""
    script = f"import sys; {WRITES}; sys.exit({on_device.UNFINISHED})"
    for _ in range(2):
        status, found, _ = queue(piece("a", script, how="alone"))
        assert (status, found["a"]["status"], found["a"]["result"]) == (0, "stopped", 1)


@pytest.mark.full
def test_pieces_that_read_text_wait_for_it():
    """Kills: a sweep on text that fails in every call because its text is not there, or never runs."""
    with_text, without = ({p.name for p in pieces(rehearse=False, fla=False, inputs=known)} for known in (True, False))
    assert {name for name in with_text - without if not name.startswith("linearize")} == {"text-tables"}


@pytest.mark.full
def test_the_list_needs_no_device(capsys, tmp_path):
    """Kills: a list that starts JAX's devices, or leaves a piece out."""
    assert on_device.main(["--list", "--state", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(
        dict.fromkeys(p.group for p in pieces(rehearse=False, fla=False))
    )
    with pytest.raises(SystemExit):
        on_device.main(["--only", "layer"])
    assert "unknown piece 'layer'; there are " in capsys.readouterr().err


def test_a_key_tells_what_was_measured(monkeypatch):
    """Kills: an answer that counts for another command, or for sources that changed."""
    known = pieces(rehearse=False, fla=True)
    before = {piece.key for piece in known}
    assert len(before) == len(known)
    monkeypatch.setattr(on_device_pieces, "_sources", lambda: "other sources")
    assert not before & {piece.key for piece in known}


def test_counters_are_of_the_kernels_that_are_furthest_from_their_bound():
    """Kills: XLA's rows, failed rows, or the fastest kernels; the units of ncu taken for values."""
    row = {"op": "a", "implementation": "mosaic_gpu", "status": "ok", "share_of_floor": 0.5}
    others = [{"share_of_floor": 0.4}, {"implementation": "xla", "share_of_floor": 0.1}, {"status": "wrong"}]
    rows = [row, *(row | other for other in others), row | {"op": "b", "share_of_floor": 0.2}]
    assert [x["share_of_floor"] for x in kernel_counters.slowest(rows, 2)] == [0.2, 0.4]
    text = """==PROF== Connected to process 12
output of the program
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","scan_mosaic_gpu","GPU Speed Of Light Throughput","Duration","us","1,234.5"
"0","scan_mosaic_gpu","Occupancy","Achieved Occupancy","%","12.5"
==PROF== Disconnected"""
    expected = {"scan_mosaic_gpu 0": {"Duration": "1,234.5 us", "Achieved Occupancy": "12.5 %"}}
    assert kernel_counters.counters(text) == expected


@pytest.mark.slow
def test_a_rehearsal_runs_every_piece(tmp_path, monkeypatch):
    """Kills: a piece whose command line or program is broken, which would show on the rented device."""
    monkeypatch.setenv("XLA_FLAGS", "")  # one device
    words = f"--rehearse --minutes 9 --out {tmp_path / 'out'} --state {tmp_path / 'state'}".split()
    assert on_device.main(words) == 0, (tmp_path / "out" / on_device.LOG).read_text()
    found = json.loads((tmp_path / "out" / on_device.RESULTS).read_text())
    rehearsed = [piece.name for piece in pieces(rehearse=True, fla=False)]
    assert [found[name]["status"] for name in rehearsed] == ["done"] * len(rehearsed)
    assert all(found[name]["result"] for name in rehearsed)
    assert len(list((tmp_path / "out").iterdir())) == 2
