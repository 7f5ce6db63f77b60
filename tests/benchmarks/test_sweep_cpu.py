"""`python -m benchmarks.sweep_cpu`. Kills: a ratio of the wrong times."""

import json
from pathlib import Path

import pytest

from benchmarks import sweep_cpu, sweep_cpu_runs
from benchmarks.sweep_cpu import table


def test_the_table_holds_each_way_against_the_commands():
    """Kills: a ratio of the wrong times, or turned over."""
    cost = {"seconds": 100.0, "cpu_seconds": 200.0}
    less = {"seconds": 25.0, "cpu_seconds": 100.0}
    ways = {
        "commands": {"empty_cache": cost, "warm_cache": less},
        "vmap": {"empty_cache": less, "warm_cache": {"seconds": 50.0, "cpu_seconds": 10.0}},
    }
    rows = table({"runs": 16, "steps": 500, "ways": ways}).splitlines()
    assert rows[2] == "| separate commands | 100 | 200 | 25 | 100 |"
    assert rows[3] == "| one sweep, `--parallel vmap` | 25 (4.0x) | 100 (2.0x) | 50 (0.5x) | 10 (10.0x) |"


def fake_call(words, cache):
    """Writes the results of a run or sweep, with an accuracy that identifies the run."""
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    if words[0] == "jaxzoo.train":
        place = Path(flags["--run-dir"])
        score = round(float(flags["--optimizer.learning-rate"]) + int(flags["--train.seed"]) / 10, 5)
        place.mkdir(parents=True)
        (place / "metrics.jsonl").write_text(json.dumps({"step": 20, "valid/accuracy": score}) + "\n")
        return
    place = Path(flags["--out"])
    place.mkdir(parents=True)
    points = sweep_cpu_runs.POINTS[flags["--scale"]]
    rows = [{"point": p, "curve": {"valid": [[20, round(p["learning_rate"] + p["seed"] / 10, 5)]]}} for p in points]
    (place / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.full
def test_the_benchmark_reports_every_way(tmp_path, monkeypatch, capsys):
    """Kills: a way or a start that is not timed, a report without its circumstances. The runs are stand-ins."""
    for name in ("JAX_PLATFORMS", "NPROC"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(sweep_cpu, "_call", fake_call)
    monkeypatch.setattr(sweep_cpu, "_timed", lambda make: (make(), {"seconds": 2.0, "cpu_seconds": 1.0}))
    out = tmp_path / "new" / "result.json"
    assert sweep_cpu.main(["--scale", "smoke", "--workers", "1", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["ways"].keys() == set(sweep_cpu.WAYS)
    assert report["runs"] == 4
    assert table(report) in capsys.readouterr().out
