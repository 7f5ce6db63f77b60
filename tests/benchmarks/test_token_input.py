"""The benchmark of the input from token shards: every measurement, told in two tables."""

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


@pytest.mark.full
def test_the_corpus_has_the_tokens_that_the_tables_name(tmp_path):
    """Kills: memory held against a corpus of another size."""
    from jaxzoo.data.tokens.token_shards import TokenDirectory

    directory = TokenDirectory(token_input.write_corpus(tmp_path / "corpus", 60_000, seed=0))
    assert sum(len(shard.tokens) for shard in directory.shards("train")) == 60_000


def test_the_tables_hold_numbers_in_their_places():
    """Kills: rates per CPU-second in the place of rates per second, bytes for megabytes."""
    speed = [
        {"kind": kind, "rows": 64, "length": 256, "tokens_per_second": 2e6, "tokens_per_cpu_second": 3e6}
        for kind in ("a", "b")
    ]
    memory = [{"tokens": 5_000_000, "private_bytes": 2e8, "mapped_bytes": 3e6}]
    lines = token_input.table({"speed": speed, "memory": memory}).splitlines()
    assert lines[2] == "| 64 x 256 | 2.0 (3.0) | 2.0 (3.0) |"
    assert lines[-1] == "| 5,000,000 | 10 | 200 | 3 |"
