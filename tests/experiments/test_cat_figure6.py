"""The experiment of CAT's Figure 6: what it trains, which run it shows, and what YaRN changes."""

import dataclasses
import json

import pytest

from experiments import cat_figure6
from experiments.cat_figure6 import MODELS, YARN, _with_yarn, best, by_length, experiment, main
from experiments.grid import fit
from jaxzoo.layers.rotary_scaling import NO_SCALING
from jaxzoo.tasks import mqar
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from jaxzoo.tasks.recall_data import Examples


def task(model, name="mqar"):
    return {"task": name, "model": model, "learning_rate": 0.25, "steps": 7}


@pytest.mark.parametrize("model", MODELS)
def test_models_are_those_of_the_figure(model):
    """Kills: a second layer for CAT, positions that are missing, a learning rate or task that is dropped."""
    config = experiment(task(model, "mqnar"))
    assert config.model.n_layers == (1 if "CAT" in model else 2)
    assert (config.model.max_positions is not None) == (model == "attention, learned")
    assert (getattr(config.model.pattern[0], "positions", "none") == "rotary") == (model == "attention, RoPE")
    assert (config.optimizer.learning_rate, config.train.steps) == (0.25, 7)
    assert isinstance(config.data.train[0].task, NGramRecallConfig)
    assert [examples.task.length for examples in config.data.valid] == [32, 64, 128, 256, 512, 1024]
    assert [examples.task.n_pairs for examples in config.data.valid] == [4, 8, 16, 32, 64, 128]


def row(model, rate, *accuracies):
    curve = dict(zip(("32", "128", "256"), accuracies, strict=True))
    return {**task(model), "learning_rate": rate, "curves": {model: curve}, "last_loss": 1.0, "cpu_seconds": 1.0}


def test_the_best_rate_is_that_of_the_trained_length():
    """Kills: a choice by the lengths that are to be predicted."""
    found = best([row("CAT", 0.1, 0.0, 0.9, 0.1), row("CAT", 0.2, 1.0, 0.8, 1.0)])["mqar"]["CAT"]
    assert (found["learning_rate"], found["curve"]["256"]) == (0.1, 0.1)


def test_yarn_changes_longer_examples_alone():
    """Kills: scaling that is dropped, or that acts on what was trained; a model that is trained anew."""
    config = experiment(task("attention, RoPE"))
    sets = tuple(Examples(task=mqar.paper(length=n, n_pairs=4, vocab_size=64), n_examples=60) for n in (16, 48))
    small = {"d_model": 16, "vocab_size": 64, "max_length": 48, "init_std": 1.0}
    fitted = fit(
        dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, **small),
            data=dataclasses.replace(config.data, train=sets[:1], valid=sets),
            train=dataclasses.replace(config.train, steps=1, batch_size=8, valid_batch_size=20),
        )
    )
    assert fitted.session.config.model.pattern[0].rotary_scaling == NO_SCALING
    plain, yarn = by_length(fitted.metrics()), _with_yarn(fitted)
    assert yarn.keys() == plain.keys() == {"16", "48"}
    assert yarn["16"] == plain["16"]
    assert yarn["48"] != plain["48"]


def test_runs_that_are_done_are_kept(tmp_path, monkeypatch, capsys):
    """Kills: a run that is made twice or lost, a table or picture that is not made."""
    for name in ("JAX_PLATFORMS", "NPROC"):
        monkeypatch.setenv(name, "1")
    out, picture = tmp_path / "g.json", tmp_path / "g.png"
    runs = [row("CAT", 0.1, 0.5, 0.9, 0.1), row("Mamba", 0.1, 0.25, 0.75, 0.0)]
    runs[1]["curves"][YARN] = runs[0]["curves"]["CAT"]
    out.write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(cat_figure6, "train", None)
    flags = f"--tasks mqar --learning-rates 0.1 --steps 7 --out {out} --picture {picture} --models CAT Mamba"
    assert main(flags.split()) == 0
    said = capsys.readouterr().out
    assert "2 runs are done, 0 are left" in said
    assert "| mqar | Mamba | 0.1 | 0.250 | 0.750 | 0.000 |" in said
    assert json.loads(out.read_text())["runs"] == runs
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["--models", "Mamb"]) == 2
    assert "--models: unknown name 'Mamb'; did you mean 'Mamba'?" in capsys.readouterr().err
