"""Trained models in experiments/models. Kills: scores that the stored weights do not reach."""

import json

import numpy as np
import pytest

from experiments.models import make
from jaxzoo.loading import load
from jaxzoo.train.export import read_header

MOST_BYTES = 6_000_000


def stated(name):
    return json.loads((make.PLACE / name / "scores.json").read_text())


def test_all_models_are_small_and_listed():
    """Kills: a model that is missing, was stored in float32 or as a run with checkpoints, a score that the table does
    not have, a folder that no command makes."""
    folders = {place.name: place for place in make.PLACE.iterdir() if (place / "config.json").exists()}
    assert folders.keys() == set(make.MODELS)  # the command without names makes what the page lists
    assert {"text-based", "mqar-based"} <= folders.keys()
    assert sum(file.stat().st_size for place in folders.values() for file in place.rglob("*")) < MOST_BYTES
    readme = (make.PLACE / "README.md").read_text()
    for name, place in folders.items():
        assert {file.name for file in place.iterdir()} == {
            "config.json",
            "metrics.jsonl",
            "model.safetensors",
            "scores.json",
        }
        seal, scores = read_header(place / "model.safetensors")[0], stated(name)
        assert (seal.step, json.loads((place / "config.json").read_text())) == (scores["steps"], seal.config)
        scored = [key for key in scores if key.startswith(("accuracy", "bits"))]
        assert len(scored) == (3 if name.startswith("mqar") else 1)
        assert all(f"| {scores[key]:,} |" in readme for key in scored)
    assert make.table("mqar") in readme
    assert make.table("text") in readme


@pytest.mark.full
def test_a_shipped_model_recalls():
    """Kills: an array that is rounded wrongly, transposed, or of another model; a stated accuracy that is wrong."""
    loaded = load(make.PLACE / "mqar-based")
    batch = loaded.data(batch_size=128).valid()[0].batch(0)
    logits = np.asarray(loaded(batch.tokens))
    hits = np.take_along_axis(logits, np.asarray(batch.positions)[:, :, None], axis=1).argmax(-1) == batch.targets
    assert abs(hits.mean() - stated("mqar-based")["accuracy, 8 pairs"]) < 0.02
