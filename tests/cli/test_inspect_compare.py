"""`jaxzoo inspect` and `compare`. Kills: scores of padding, unpaired errors."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jaxzoo
import jaxzoo.evals.compare
from jaxzoo.cli.compare import main as compare
from jaxzoo.cli.export import main as export
from jaxzoo.cli.inspect import main as inspect
from tests.cli.test_evaluate import trained as trained

pytestmark = pytest.mark.full


@pytest.fixture(name="run", scope="module")
def run_and_export(trained):
    """A run with checkpoints 2 and 3, and next to it `two.safetensors`, an export of the first."""
    assert export(["--run", str(trained), "--checkpoint", "2", "--out", str(trained.parent / "two.safetensors")]) == 0
    return trained


def test_compare_scores_runs_and_exports_on_the_same_rows(run, tmp_path, capsys):
    """Kills: scores of padding rows, errors that are not paired, another checkpoint, a loss that is not evaluate's."""
    exported = run.parent / "two.safetensors"
    assert compare([str(run), str(exported), "--out", f"{tmp_path}/c.json", "--picture", f"{tmp_path}/c.png"]) == 0
    first, second = json.loads((tmp_path / "c.json").read_text())
    assert (first["step"], second["step"]) == (3, 2)
    printed = capsys.readouterr().out
    assert f"{first['loss']:.4f}" in printed
    assert f"{second['difference']:+.4f}" in printed
    assert (tmp_path / "c.png").stat().st_size > 5000

    models = jaxzoo.load(run), jaxzoo.load(exported)
    last = [row for row in models[0].metrics if "valid/loss" in row][-1]
    np.testing.assert_allclose(first["loss"], last["valid/loss"], rtol=1e-5)
    nats: list = [[], []]
    for which, loaded in enumerate(models):
        for valid in loaded.data().valid():
            for i in range(valid.n_batches):
                batch = valid.batch(i)
                logits = np.asarray(loaded(batch.tokens), np.float64)
                picked = np.take_along_axis(logits, np.asarray(batch.positions)[:, :, None], axis=1)
                target = np.take_along_axis(picked, np.asarray(batch.targets)[:, :, None], axis=2)[:, :, 0]
                nats[which] += list((np.log(np.exp(picked).sum(-1)) - target).sum(1))
                targets = batch.targets.shape[1]
    difference = (np.array(nats[1]) - np.array(nats[0])) / targets
    np.testing.assert_allclose(second["difference"], difference.mean(), atol=1e-5)
    expected = difference.std(ddof=1) / np.sqrt(len(difference))
    np.testing.assert_allclose(second["difference_error"], expected, rtol=1e-3)
    accuracies = {name: last[f"valid/accuracy/{name}"] for name in first["slices"]}
    assert first["slices"] == pytest.approx(accuracies, rel=1e-6)
    assert len({accuracies["length=24"], accuracies["length=32"], 0.0}) == 3, "slices that could be confused"


def test_errors_where_rows_have_different_numbers_of_targets(run):
    """Kills: a standard error that grows with the spread of targets per row."""
    loaded = jaxzoo.load(run)
    data: Any = SimpleNamespace(bytes_per_token=None, max_length=8, valid=list)
    targets = np.array([1.0, 1.0, 16.0, 16.0, 16.0])
    nats = 4 * targets + np.array([0.1, -0.1, 0.5, -0.2, 0.3])
    perfect, other = (jaxzoo.evals.compare.RowSums(x, targets, targets, (0,), 1.0) for x in (0 * nats, nats))
    found = jaxzoo.evals.compare._scored("other", loaded, other, perfect, data)
    assert found.difference == found.loss
    assert found.difference_error == pytest.approx(found.loss_error, rel=1e-9)


def test_inspect_draws_an_example_and_says_where_the_model_looks(run, tmp_path, capsys):
    """Kills: a picture of another example, a table without its queries, a run that is written to."""
    assert inspect(["--run", str(run), "--example", "3", "--out", str(tmp_path / "a.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    example = jaxzoo.load(run).example(3)
    assert len(lines) == 1 + example.targets.shape[1]
    for position, line in zip(sorted(np.asarray(example.positions[0])), lines[1:], strict=True):
        assert line.split()[:2] == [str(position), str(example.tokens[0, position])]
    assert "layer 0: scores" in lines[0] or "largest scores, layer 0" in lines[0]
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
