"""`python -m benchmarks.generation`. Kills: a report without some measurement."""

import json

import jax
import pytest

from benchmarks.generation.__main__ import main
from benchmarks.generation.models import SIZES
from jaxzoo.models.accounting import state_bytes

pytestmark = pytest.mark.full


@pytest.mark.slow
def test_a_run_reports_every_measurement_and_its_circumstances(tmp_path, capsys):
    """Kills: a curve without points, a state that is counted by a formula, a number without device or version."""
    command = ["--size", "tiny", "--repeats", "2", "--lengths", "16", "--batches", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    report = json.loads((tmp_path / "generation-tiny-cpu.json").read_text())
    assert (tmp_path / "generation-tiny-cpu.png").read_bytes().startswith(b"\x89PNG")
    size = SIZES["tiny"]
    models = size.models()
    assert [model["model"] for model in report["models"]] == list(models)
    for kind, name, values in (
        ("prefill", "length", (16,)),
        ("decode_by_context", "context", (16,)),
        ("decode_by_batch", "batch", (2,)),
    ):
        assert [(row["model"], row[name]) for row in report[kind]] == [(m, value) for m in models for value in values]
        assert all(len(row["all_seconds"]) == 2 and row["tokens_per_second"] > 0 for row in report[kind])
    for row in report["decode_by_context"]:
        assert row["state_bytes"] == state_bytes(models[row["model"]], row["context"] + size.context_steps)
    assert report["platform"] == "cpu"
    assert report["versions"]["jax"] == jax.__version__
    assert report["date"]
    out = capsys.readouterr().out
    assert out.count("tokens/s") == 9

    assert main(command) == 2
    assert "generation-tiny-cpu.json exists; replace it with --overwrite" in capsys.readouterr().err
