"""`jaxzoo classify`. Kills: an accuracy on the training split."""

import json
import random

import pytest

from jaxzoo.cli import classify, train

CONFIG = """
from jaxzoo.train.config import RunConfig, LabelledSequencesConfig, TrainConfig
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
config = RunConfig(
    model=LanguageModelConfig(
        pattern=(AttentionConfig(n_heads=2),), d_model=16, n_layers=1, vocab_size=6, max_length=12, mlp_width=16
    ),
    data=LabelledSequencesConfig(path={path!r}, length=12),
    train=TrainConfig(steps=1, batch_size=8, valid_batch_size=64),
)
"""


def write_benchmark(path):
    """Sequences of A and C against sequences of A and G, which 1-mers tell apart."""
    rng = random.Random(0)
    for split, n in (("train", 120), ("test", 40)):
        rows = [(label, "".join(rng.choices("AC" if label == "a" else "AG", k=10))) for label in "ab" for _ in range(n)]
        text = "\n".join(["sequence,label", *(f"{sequence},{label}" for label, sequence in rows)])
        (path / f"{split}.csv").write_text(text + "\n")


@pytest.mark.full
def test_from_run_to_interval(tmp_path, capsys):
    """Kills: a score of the training split, parameters that are not the run's, a table without its baselines, a second
    call that overwrites, a resumed call that trains again or pools differently."""
    write_benchmark(tmp_path)
    config = tmp_path / "config.py"
    config.write_text(CONFIG.format(path=str(tmp_path)))
    assert train.main(f"--config {config} --run-dir {tmp_path / 'pretrained'}".split()) == 0
    flags = f"--run {tmp_path / 'pretrained'} --data {tmp_path} --run-dir {tmp_path / 'fine'} --length 12 --kmer 1"
    flags += " --pool mean --steps 60 --batch-size 16 --learning-rate 3e-2"
    assert classify.main(flags.split()) == 0
    report = json.loads((tmp_path / "fine" / "classification.json").read_text())
    assert report["n"] == 80
    results = report["results"]
    assert set(results) == {"model", "1-mer logistic regression", "largest class"}
    assert results["largest class"]["accuracy"] == 0.5
    assert results["1-mer logistic regression"]["accuracy"] > 0.95
    assert results["model"]["low"] < results["model"]["accuracy"] <= 1
    assert results["model"]["accuracy"] > 0.8
    assert json.loads((tmp_path / "fine" / "origin.json").read_text())["run"] == str(tmp_path / "pretrained")
    assert "95 % interval" in capsys.readouterr().out
    assert classify.main(flags.split()) == 2
    assert classify.main([*flags.replace(" --pool mean", "").split(), "--resume"]) == 2
    assert "pool" in capsys.readouterr().err
    (tmp_path / "fine" / "classification.json").unlink()
    assert classify.main([*flags.split(), "--resume"]) == 0
    assert json.loads((tmp_path / "fine" / "classification.json").read_text()) == report
