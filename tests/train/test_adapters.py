"""LoRA. Kills: base parameters that learn, a merge that changes the outputs."""

import json
import shutil
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxzoo
from jaxzoo.cli.evaluate import main as evaluate
from jaxzoo.cli.export import main as export
from jaxzoo.cli.train import main as train
from jaxzoo.loading.trained import load_variables, read_run
from tests.train.conftest import CONFIG
from tests.train.test_origin import configured, make_run, saved_variables

LORA = "--train.lora-rank 2 --train.lora-alpha 6 --train.lora-targets q_proj v_proj"
SHORT = "--train.steps 4 --train.checkpoint-every 2 --train.eval-every 2"


@pytest.fixture
def files(tmp_path, text_file):
    """A run on text with random parameters, and a config of the same model on pairs."""
    pairs = [{"prompt": f"{n} + 1 = ", "response": str(n + 1)} for n in range(64)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    text_file.write_text(text_file.read_text().replace("BaseConvConfig", "AttentionConfig"))
    make_run(configured(text_file), tmp_path / "base", steps=(3,))
    file = tmp_path / "pairs.py"
    data = f"CompletionsConfig(path={str(tmp_path / 'pairs.jsonl')!r}, length=16)"
    own = "from jaxzoo.data.completions import CompletionsConfig\n"
    config = textwrap.dedent(CONFIG).replace("BaseConvConfig", "AttentionConfig").replace("DATA", data)
    file.write_text(own + config)
    return file


@pytest.mark.slow
def test_finetunes_merges_and_resumes(files, tmp_path, capsys, monkeypatch):
    """Kills: a start that is not the base model, other parameters that learn, a merge of another scale or order, a
    mesh that changes the numbers, a resumed run that forgets the base, an export that is not the model."""
    monkeypatch.chdir(tmp_path)
    flags = [str(files), *LORA.split(), *SHORT.split()]
    assert train(["--config", *flags, "--run-dir", "tuned", "--init-from", "base:3"]) == 0, capsys.readouterr().err
    assert "parameters of adapters" in capsys.readouterr().out
    _, own, _ = load_variables(*read_run(tmp_path / "base"), 3)
    stored, first = saved_variables(tmp_path / "tuned", 4), saved_variables(tmp_path / "tuned", 2)
    names = {name for name in stored if name.startswith("params")}
    assert {name.split("/")[-3] for name in names} == {"q_proj", "v_proj"}
    assert all((stored[name] != first[name]).any() for name in names)
    for path, x in jax.tree.leaves_with_path(own.params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_array_equal(stored[f"buffers/frozen/{name}"], x, err_msg=name)

    _, merged, _ = load_variables(*read_run(tmp_path / "tuned"), 4)
    for path, x in jax.tree.leaves_with_path(merged.params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        w = stored[f"buffers/frozen/{name}"].astype(np.float64)
        if f"params/{name}/a" in names:
            w = w + 3 * stored[f"params/{name}/a"].astype(np.float64) @ stored[f"params/{name}/b"]
        np.testing.assert_allclose(x, w, rtol=0, atol=1e-6, err_msg=name)

    of_run, config = read_run(tmp_path / "tuned")
    stored_config = of_run.config.read_text()
    of_run.config.write_text(stored_config.replace('"lora_alpha": 6.0', '"lora_alpha": 60.0'))
    assert of_run.config.read_text() != stored_config
    for x, again in zip(jax.tree.leaves(merged), jax.tree.leaves(load_variables(of_run, config, 4)[1]), strict=True):
        np.testing.assert_array_equal(x, again)
    assert export(["--run", "tuned", "--adapters", "--out", "scaled.safetensors"]) == 0, capsys.readouterr().err
    of_run.config.write_text(stored_config)

    straight = (tmp_path / "tuned/metrics.jsonl").read_text()
    shutil.rmtree(tmp_path / "tuned/checkpoints/4")
    assert train(["--config", *flags, "--run-dir", "tuned", "--resume"]) == 0
    assert (tmp_path / "tuned/metrics.jsonl").read_text() == straight
    losses = [json.loads(line).get("valid/loss") for line in straight.splitlines()]
    losses = [loss for loss in losses if loss is not None]
    assert evaluate(["--run", "tuned", "--out", "tuned.json"]) == 0
    assert json.loads((tmp_path / "tuned.json").read_text())["metrics"]["valid/loss"] == pytest.approx(losses[-1], 1e-6)

    mesh = ["--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2", "--run-dir", "shared"]
    assert train(["--config", *flags, *mesh, "--init-from", "base:3"]) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "shared/metrics.jsonl").read_text().splitlines()]
    assert [row["valid/loss"] for row in rows if "valid/loss" in row] == pytest.approx(losses, 1e-5)

    assert export(["--run", "tuned", "--out", "whole.safetensors"]) == 0
    assert export(["--run", "tuned", "--adapters", "--out", "adapters.safetensors"]) == 0, capsys.readouterr().err
    assert (tmp_path / "scaled.safetensors").read_bytes() == (tmp_path / "adapters.safetensors").read_bytes()
    for number in range(3):  # the library orders the metadata in another way each time
        assert export(["--run", "tuned", "--adapters", "--out", f"{number}.safetensors"]) == 0
        assert (tmp_path / f"{number}.safetensors").read_bytes() == (tmp_path / "adapters.safetensors").read_bytes()
    (tmp_path / "plain").touch()
    assert (tmp_path / "adapters.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert export(["--run", "base", "--adapters", "--out", "none.safetensors"]) == 2
    assert "was trained without adapters" in capsys.readouterr().err
    assert export(["--import", "whole.safetensors", "--out", "imported"]) == 0, capsys.readouterr().err
    tokens = jnp.arange(12, dtype=jnp.int32)[None]
    expected = jaxzoo.load("tuned")(tokens)
    for loaded in (
        jaxzoo.load("whole.safetensors"),
        jaxzoo.load("imported"),
        jaxzoo.load("base", adapters="adapters.safetensors"),
    ):
        np.testing.assert_allclose(loaded(tokens), expected, rtol=0, atol=1e-5)
    assert np.abs(jaxzoo.load("base")(tokens) - expected).max() > 1e-3
    with pytest.raises(ValueError, match="were trained on another model"):
        jaxzoo.load("tuned", adapters="adapters.safetensors")
    again = ["--config", str(files), *SHORT.split(), "--init-from", "tuned", "--run-dir", "again"]
    assert train(again) == 0, capsys.readouterr().err


def test_mistakes_are_one_line(files, tmp_path, capsys):
    """Kills: adapters of random parameters, targets without a rank, a target that nothing has."""
    for flags, message in (
        (LORA, "TrainConfig.lora_rank=2 needs a trained model; give it by --init-from RUN"),
        ("--train.lora-rank 2", "TrainConfig.lora_rank=2 must be given together with lora_targets"),
        (f"{LORA} q_prjo --init-from {tmp_path / 'base'}", "unknown projection 'q_prjo'; did you mean 'q_proj'?"),
    ):
        assert train(["--config", str(files), "--run-dir", str(tmp_path / "run"), *flags.split()]) == 2
        assert message in capsys.readouterr().err
