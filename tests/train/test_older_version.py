"""Runs that were begun before some fields of a config were there."""

import hashlib
import json
import shutil
from pathlib import Path

from jaxzoo.cli.evaluate import main as evaluate

NEW = {"mesh": ["sequence"], "train": ["accumulate", "keep_best", "loss_chunk", "z_loss"], "model": ["remat"]}


def as_an_older_version_wrote(run: Path) -> None:
    """Leaves the checkpoint of step 6 as the newest; takes fields out of config and seals."""
    shutil.rmtree(run / "checkpoints" / "9")
    (run / "newest_checkpoint.json").unlink()
    (run / "config.json").write_text(json.dumps(without_new_fields(json.loads((run / "config.json").read_text()))))
    for file in run.glob("checkpoints/*/seal/metadata"):
        seal = json.loads(file.read_text())
        del seal["sha256"]
        seal["config"] = without_new_fields(seal["config"])
        sha256 = hashlib.sha256(json.dumps(seal, sort_keys=True).encode()).hexdigest()
        file.write_text(json.dumps({**seal, "sha256": sha256}))


def without_new_fields(config: dict) -> dict:
    return {part: {k: v for k, v in fields.items() if k not in NEW.get(part, [])} for part, fields in config.items()}


def losses(rows: list[dict]) -> dict:
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


def test_it_goes_on(mqar_file, run, rows, tmp_path, capfd):
    """Kills: a field of a new version that makes every older run another experiment."""
    assert run(mqar_file, "r") == 0
    unbroken = losses(rows("r"))
    as_an_older_version_wrote(tmp_path / "r")
    capfd.readouterr()
    assert run(mqar_file, "r", "--resume") == 0
    assert "cannot be used" not in capfd.readouterr().err
    assert losses(rows("r")) == unbroken
    assert max(unbroken) == 9


def test_other_values_of_new_fields_are_another_experiment(mqar_file, run, tmp_path, capfd):
    """Kills: a new field whose value nobody compares."""
    assert run(mqar_file, "r") == 0
    as_an_older_version_wrote(tmp_path / "r")
    capfd.readouterr()
    assert run(mqar_file, "r", "--resume", "--train.z-loss", "0.1") == 2
    assert "--resume: train.z_loss is 0.1 but the run in" in capfd.readouterr().err


def test_it_is_evaluated(mqar_file, run, tmp_path):
    """Kills: a config that is compared with its seal field by field, though one of them is older."""
    assert run(mqar_file, "r") == 0
    config = (tmp_path / "r" / "config.json").read_text()
    as_an_older_version_wrote(tmp_path / "r")
    (tmp_path / "r" / "config.json").write_text(config)
    assert evaluate(["--run", str(tmp_path / "r")]) == 0
