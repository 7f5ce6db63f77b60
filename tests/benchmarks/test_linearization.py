"""`python -m benchmarks.linearization`. Kills: a piece that is lost, damaged or joined in another order."""

import json
import shutil

import numpy as np
import pytest

from benchmarks import linearization


def test_pieces_arrive_one_by_one(tmp_path, capsys):
    """Kills: a file that is joined without a piece, pieces in alphabetical order (10 before 2), damage that is not
    noticed, documents that are lost, a second transfer that forgets the first."""
    text, weights = tmp_path / "text", tmp_path / "x.gguf"
    text.mkdir()
    content = np.random.default_rng(0).bytes(11_500)
    weights.write_bytes(content)
    for i in range(20):
        (text / f"{i}.txt").write_text(f"document {i}")
    pieces, sent, state = tmp_path / "pieces", tmp_path / "sent", tmp_path / "state"
    words = f"pack --weights {weights} --text {text} --piece-mb 0.001 --out {pieces}"
    assert linearization.main(words.split()) == 0
    names = sorted(file.name for file in pieces.iterdir() if file.name != linearization.MANIFEST)
    assert sum(name.startswith("model.gguf.") for name in names) == 12
    assert max((pieces / name).stat().st_size for name in names) == 1000

    def transfer(chosen, damage=b""):
        shutil.rmtree(sent, ignore_errors=True)
        sent.mkdir()
        for name in (linearization.MANIFEST, *chosen):
            more = b"" if name == linearization.MANIFEST else damage
            (sent / name).write_bytes((pieces / name).read_bytes() + more)
        status = linearization.main(f"join --pieces {sent} --state {state}".split())
        return status, capsys.readouterr().out

    status, said = transfer(names[:1], damage=b"!")
    assert status == 1
    assert f"{names[0]} is damaged" in said
    assert not transfer(names[2:])[0]
    assert not (state / "inputs" / "model.gguf").exists()
    status, said = transfer(names[:2])
    assert (status, said.count("complete")) == (0, 2)
    assert (state / "inputs" / "model.gguf").read_bytes() == content
    found = {file.name: file.read_text() for file in (state / "inputs" / "text").iterdir()}
    assert found == {f"{i}.txt": f"document {i}" for i in range(20)}
    assert transfer(())[1].count("complete") == 2


@pytest.mark.slow
def test_a_conversion_is_resumed(tmp_path, monkeypatch):
    """Kills: a stage or a task without result, finished stages that run again."""
    words = f"run --tiny --mixer based --state {tmp_path} --out {tmp_path / 'out.json'}".split()
    assert linearization.main(words) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["stages"].keys() == found["records"].keys() == {"before", "transfer", "finetuning"}
    assert all(stage["loss"] > 0 and stage["recall"] for stage in found["stages"].values())
    assert {answers["n"] for answers in found["records"].values()} == {linearization.FEW}
    monkeypatch.setattr("jaxzoo.linearization.transfer.transfer", None)
    assert linearization.main(words) == 0
