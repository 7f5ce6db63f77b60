"""`python -m benchmarks.cross_entropy`. Kills: a time of a form that is wrong."""

import json

import pytest

from benchmarks import cross_entropy


@pytest.mark.full
def test_only_right_forms_are_timed(monkeypatch, tmp_path):
    right = cross_entropy.known()["jaxzoo, chunks of 2048"]
    forms = {"right": right, "wrong": lambda features, table, targets: 1.1 * right(features, table, targets)}
    monkeypatch.setattr(cross_entropy, "known", lambda: forms)
    out = tmp_path / "found.json"
    words = f"--rows 40 --width 8 --vocabulary 30 --seconds 0.01 --out {out}".split()
    assert cross_entropy.main(words) == 0
    found = json.loads(out.read_text())
    assert found["right"]["error"] < 1e-4
    assert found["right"]["ms"] > 0
    assert set(found["wrong"]) == {"error"}
