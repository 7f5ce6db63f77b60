"""`python -m benchmarks.token_input`. Kills: a kind of input that is not measured."""

import json
import sys

import pytest

from benchmarks import token_input


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets the affinity of processes")
def test_a_run_reports_every_measurement_and_its_circumstances(tmp_path, monkeypatch, capsys):
    """Kills: a kind that is not measured, memory of the large corpus alone, a number without machine or version."""
    monkeypatch.setattr(token_input, "SIZES", ((2, 8), (3, 16)))
    monkeypatch.setattr(token_input, "_alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    cores = token_input.os.sched_getaffinity(0)
    out = tmp_path / "made" / "result.json"
    try:
        assert token_input.main(["--tokens", "100000", "--seconds", "0.05", "--out", str(out)]) == 0
    finally:
        token_input.os.sched_setaffinity(0, cores)
    report = json.loads(out.read_text())
    kinds = ["one corpus", "with segments", "mixture of three"]
    assert [(row["kind"], row["rows"], row["length"]) for row in report["speed"]] == [
        (kind, *size) for size in ((2, 8), (3, 16)) for kind in kinds
    ]
    assert all(row["tokens_per_second"] > 0 and row["tokens_per_cpu_second"] > 0 for row in report["speed"])
    assert [row["tokens"] for row in report["memory"]] == [10_000, 100_000]
    assert all(row["private_bytes"] > 2**20 for row in report["memory"])
    assert report["machine"]
    assert report["versions"]["jax"]
    shown = capsys.readouterr().out
    assert token_input.table(report) in shown
    assert len([line for line in shown.splitlines() if line.startswith("|")]) == 8
