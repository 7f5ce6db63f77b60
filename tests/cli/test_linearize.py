"""`jaxzoo linearize`. Kills: a stage that is repeated or lost after a stop."""

import shutil

import numpy as np
import pytest
from flax import nnx

from jaxzoo.cli.generate import main as generate
from jaxzoo.cli.linearize import _as_run, main as linearize
from jaxzoo.config.config_io import to_json
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.interop import save
from jaxzoo.loading import load
from jaxzoo.loading.importing import create_imported
from jaxzoo.mixers import AttentionConfig, WindowedLinearAttentionConfig
from jaxzoo.models.blueprint import split_variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.run_dir import RunDirectory


def make_run(place, pattern, n_layers=1):
    """A run over the bytes of a text, of random parameters."""
    text = place.parent / "text"
    text.mkdir(exist_ok=True)
    for i in range(6):
        (text / f"{i}.txt").write_text("a cab, a cabbage and the abbey. " * 20)
    data = TextDataConfig(path=str(text), length=16, valid_tokens=64)
    sizes = {"d_model": 16, "n_layers": n_layers, "vocab_size": 257, "max_length": 16, "mlp_width": 16}
    model = LanguageModelConfig(pattern=pattern, **sizes)
    config = RunConfig(model=model, data=data, train=TrainConfig(batch_size=8, valid_batch_size=2))
    variables = split_variables(LanguageModel(model, rngs=nnx.Rngs(0)))
    tokenizer = data.tokenizer().fingerprint
    create_imported(RunDirectory(place), to_json(config), variables, {"step": 0}, tokenizer)
    return place


ATTENTION = AttentionConfig(n_heads=2, n_kv_heads=1, positions="rotary")


@pytest.fixture
def source(tmp_path):
    """A run of two layers."""
    return make_run(tmp_path / "source", (ATTENTION,), n_layers=2)


def run(source, out, *words):
    return linearize([str(x) for x in ("--run", source, "--out", out, *words)])


def refused(capsys, *words):
    """The one line of a refused command."""
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


@pytest.mark.slow
def test_both_stages_and_on_after_a_stop(source, tmp_path, capsys):
    """Kills: a stage whose run other commands refuse, a table without a stage, a stop that damages or repeats finished
    work, an overwritten run, changed settings that are not noticed."""
    out, words = tmp_path / "out", ("--keep", "0", "--transfer.tokens", "256", "--finetune.tokens", "256")
    words += ("--finetune.lora-rank", "2", "--window", "4")
    assert run(source, out, *words) == 0
    said = capsys.readouterr()
    table = [line.split()[0] for line in said.out.splitlines()[-4:]]
    assert table == ["stage", "before", "transfer", "finetuning"]
    assert "mixer.k_map mixer.log_weight mixer.q_map" in said.err
    made = load(out)
    kinds = [type(layer) for layer in made.config.model.layers]
    assert kinds == [AttentionConfig, WindowedLinearAttentionConfig]
    assert made.step == 2
    assert generate(["--run", str(out), "--prompt", "a cab", "--max-tokens", "2"]) == 0
    capsys.readouterr()
    assert "holds a run" in refused(capsys, source, out, *words)
    assert "other settings" in refused(capsys, source, out, *words[:-1], "5", "--resume")

    transferred = load(f"{out}-transfer")
    shutil.rmtree(out)
    shutil.rmtree(f"{out}-transfer/checkpoints")  # stopped while it was written
    assert run(source, out, *words, "--resume") == 0
    assert "not complete" in capsys.readouterr().err
    again = load(f"{out}-transfer")
    np.testing.assert_array_equal(again.model.embedding[...], transferred.model.embedding[...])
    assert run(source, out, *words, "--resume") == 0
    assert "the transfer is complete" in capsys.readouterr().err


def test_another_folder_is_not_the_one_that_was_imported_before(tmp_path):
    """Kills: a folder that is converted in place of the one that was asked for."""
    config = LanguageModelConfig(pattern=(ATTENTION,), d_model=8, n_layers=1, vocab_size=264, norm="rms")
    for i in range(2):
        save(LanguageModel(config, rngs=nnx.Rngs(i)), tmp_path / f"folder{i}", family="llama")
    first = _as_run(tmp_path / "folder0", tmp_path / "out")
    assert _as_run(tmp_path / "folder0", tmp_path / "out") == first
    with pytest.raises(ValueError, match=r"out-source holds the model of .*folder0, not of .*folder1; remove it"):
        _as_run(tmp_path / "folder1", tmp_path / "out")
