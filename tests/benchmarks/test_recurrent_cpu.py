"""`python -m benchmarks.recurrent_cpu`. Kills: a plain form with other values."""

import json

import pytest

from benchmarks import recurrent_cpu


@pytest.mark.slow
def test_plain_forms_give_the_values_of_ours(tmp_path, capsys):
    """Kills: a plain form that computes something else, or fails on heads that share keys; a file without its facts."""
    out = tmp_path / "report.json"
    flags = ["--length", "128", "--width", "64", "--calls", "1", "--only", "mamba2", "--out", str(out)]
    assert recurrent_cpu.main(flags) == 0
    printed = capsys.readouterr()
    assert "another value" not in printed.err
    assert printed.out.count("ours / fastest") == 1
    report = json.loads(out.read_text())
    assert report["cpu_ms"].keys() == {"mamba2"}
    assert {"device", "date", "jax"} <= report.keys()
