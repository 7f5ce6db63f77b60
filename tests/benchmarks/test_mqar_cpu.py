"""`python -m benchmarks.mqar_cpu`. Kills: a peer that computes another loss."""

import json
import os
import stat
import sys

import pytest

from tests.train.conftest import use_one_device

pytestmark = pytest.mark.full

PEER = """#!{python}
import sys
import numpy as np

with np.load(sys.argv[2]) as loaded:
    file = dict(loaded)
assert all(value.dtype != object for value in file.values())
assert {{"b1", "b2", "eps", "weight_decay", "clip_norm", "tokens", "rates", "params/embedding"}} <= file.keys()
print("peer 1.0", flush=True)
for line in sys.stdin:
    task, count = line.split()
    print(*(["7"] * int(count) if task == "check" else ["1e6"]), flush=True)
"""


@pytest.fixture
def mqar_cpu(monkeypatch):
    """The benchmark with one small model; its import sets variables that JAX reads when it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JAX_PLATFORMS", "NPROC"):
            patch.setenv(name, os.environ[name])
        from benchmarks import mqar_cpu
    monkeypatch.setattr(mqar_cpu, "MODELS", {"base_conv": mqar_cpu.MODELS["base_conv"]})
    monkeypatch.setattr(mqar_cpu, "PAIRS", {64: 4})
    use_one_device(monkeypatch)
    return mqar_cpu


def test_a_peer_is_timed_next_to_ours(mqar_cpu, tmp_path, monkeypatch, capsys):
    """Kills: a file that a peer without our classes cannot read (fields that are None), a peer that is not asked."""
    peer = tmp_path / "python"
    peer.write_text(PEER.format(python=sys.executable))
    peer.chmod(peer.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(mqar_cpu.Ours, "losses", lambda self, count: [7.0] * count)
    out = tmp_path / "result.json"
    mqar_cpu.main(mqar_cpu.BenchmarkConfig(blocks=1, block_steps=1, peer=str(peer), out=out))
    (row,) = json.loads(out.read_text())["rows"]
    assert row["peer_cpu_ms"] == {"authors": 1e6, "lean": 1e6}
    assert row["peer_torch"] == "peer 1.0"
    assert 0 < row["cpu_ms"] < 1e6
    assert capsys.readouterr().out.count("| base_conv | 64 |") == 1


@pytest.mark.parity
def test_pytorch_computes_our_losses(mqar_cpu, tmp_path):
    """Kills: other parameters, constants or batches than ours in the peer; the benchmark itself compares the losses."""
    pytest.importorskip("torch")
    out = tmp_path / "result.json"
    mqar_cpu.main(mqar_cpu.BenchmarkConfig(blocks=1, block_steps=1, peer=sys.executable, out=out))
    assert json.loads(out.read_text())["rows"][0]["peer_cpu_ms"].keys() == {"authors", "lean"}


@pytest.mark.slow
def test_generation_of_mqar_is_timed(capsys):
    """Kills: a preset or filler that the task has dropped."""
    from benchmarks import mqar_generation

    mqar_generation.main(mqar_generation.BenchmarkConfig(n_examples=48, length=32, n_pairs=4, vocab_size=64, chunk=32))
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["n_examples"] == 48
    assert len([name for name in report if name.endswith("_s")]) == 6
    assert report["batch_64_of_length_64_ms"] > 0
