"""`python -m benchmarks.pretrained_cpu`. Kills: wall and CPU time in exchanged columns."""

import json
import sys
from types import SimpleNamespace

import pytest

import jaxzoo
from benchmarks import pretrained_cpu

PEER = "import sys\nfor line in sys.stdin:\n    print(0.5, 0.25, flush=True)\n"


@pytest.mark.full
def test_report(tmp_path, monkeypatch):
    """Kills: columns of wall and CPU time that are exchanged, a round that compiles and is counted."""
    (tmp_path / "peer.py").write_text(PEER)
    model = jaxzoo.load("experiments/models/text-based").model
    monkeypatch.setattr(pretrained_cpu, "PEER", tmp_path / "peer.py")
    monkeypatch.setattr(pretrained_cpu, "TASKS", ("prefill 8", "decode 8 2"))
    monkeypatch.setattr(pretrained_cpu, "load", lambda folder: SimpleNamespace(model=model))
    words = ["--folder", "x", "--peer", sys.executable, "--rounds", "2", "--out", str(tmp_path / "out.json")]
    pretrained_cpu.main(words)
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["columns"] == ["wall_s", "cpu_s"]
    for task in ("prefill 8", "decode 8 2"):
        assert report["medians"][task]["transformers"] == [0.5, 0.25]
        assert len(report["rows"][task]["jaxzoo"]) == 2
        assert min(report["medians"][task]["jaxzoo"]) > 0
