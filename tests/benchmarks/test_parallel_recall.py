"""`python -m benchmarks.parallel_recall`. Kills: a program with wrong answers."""

import json

import pytest

from benchmarks import parallel_recall


@pytest.mark.full
def test_report_and_picture(tmp_path, monkeypatch):
    """Kills: a program that answers wrongly, a row without one of the programs, a picture that is not drawn."""
    monkeypatch.setattr(parallel_recall, "CIRCUITS", ((2, 2),))
    parallel_recall.main(["--shortest", "5", "--longest", "5", "--out", str(tmp_path / "out.json")])
    report = json.loads((tmp_path / "out.json").read_text())
    assert [*report["times"][0]] == ["tokens", *parallel_recall.PROGRAMS]
    assert [row["tokens"] for row in report["counts"]] == [2**i for i in range(4, 21)]
    assert report["base_conv"][0]["layers"] == 7
    assert (tmp_path / "out.png").stat().st_size > 1000
