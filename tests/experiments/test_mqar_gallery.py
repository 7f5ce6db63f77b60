"""The experiment of the gallery: its scores, what it keeps, and whether every mixer learns."""

import json
import math

import pytest

from experiments import mqar_gallery
from experiments.mqar_gallery import LENGTH, VOCAB_SIZE, experiment, main, scores, train
from jaxzoo.mixers import MIXERS, RetNetConfig

SOLVE = (
    "attention",
    "big_bird",
    "blocked_window_attention",
    "convolution_augmented_attention",
    "scatter_brain",
    "selective_attention",
    "sliding_window_attention",
    "taylor_linear_attention",
)
"""Mixers that keep all keys of so short a text (Zoology, Prop. 4.3), and Based's; in the results beside the benchmarks
they have at least 0.9."""


def row(mixer, width, rate, seed, accuracy, state_bytes=100):
    facts = {"mixer": mixer, "width": width, "learning_rate": rate, "seed": seed, "steps": 5}
    result = {"family": "conv", "accuracy": accuracy, "last_loss": 1.0, "cpu_seconds": 1.0}
    return {**facts, **result, "state_bytes": state_bytes}


def test_scores_are_the_best_mean_not_the_mean_of_the_best():
    """Kills: the best learning rate of each seed, which flatters what varies."""
    runs = [row("a", 8, 0.1, 0, 1.0), row("a", 8, 0.1, 1, 0.0), row("a", 8, 0.2, 0, 0.5), row("a", 8, 0.2, 1, 0.7)]
    best = scores([*runs, row("a", 16, 0.1, 0, 0.3)])["a"]
    assert best[8]["accuracy"] == pytest.approx(0.6)
    assert best[8]["learning_rate"] == 0.2
    assert list(best) == [8, 16]


def test_the_experiment_is_that_of_the_config_file():
    """Kills: another task, mixer, width or learning rate than the row says."""
    task = {"mixer": "ret_net", "width": 24, "learning_rate": 0.5, "seed": 3, "steps": 7}
    config = experiment(task)
    assert isinstance(config.model.layers[1], RetNetConfig)
    assert (config.model.d_model, config.model.vocab_size, config.model.max_length) == (24, VOCAB_SIZE, LENGTH)
    assert (config.optimizer.learning_rate, config.train.seed, config.train.steps) == (0.5, 3, 7)


def test_runs_that_are_done_are_kept(tmp_path, monkeypatch, capsys):
    """Kills: a run that is made twice or lost, a picture without what does not stream."""
    for name in ("JAX_PLATFORMS", "NPROC"):
        monkeypatch.setenv(name, "1")
    out, picture = tmp_path / "g.json", tmp_path / "g.png"
    runs = [row("ret_net", 8, 0.1, 0, 0.5), row("attention", 8, 0.1, 0, 0.9, state_bytes=None)]
    out.write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(mqar_gallery, "train", None)
    flags = f"--widths 8 --learning-rates 0.1 --seeds 1 --steps 5 --out {out} --picture {picture}"
    assert main([*flags.split(), "--only", "ret_net", "attention"]) == 0
    assert "2 runs are done, 0 are left" in capsys.readouterr().out
    assert json.loads(out.read_text())["runs"] == runs
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["--only", "ret_nt"]) == 2
    assert "unknown mixer 'ret_nt'; did you mean 'ret_net'?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MIXERS))
def test_every_mixer_learns(name):
    """Kills: a mixer that passes the contract and does not train, or that does not recall what its paper says."""
    result = train({"mixer": name, "width": 64, "learning_rate": 3e-3, "seed": 0, "steps": 400})
    assert result["first_loss"] == pytest.approx(math.log(VOCAB_SIZE), rel=0.1)
    assert result["last_loss"] < math.log(VOCAB_SIZE / 2) + 0.1, "it has not even learnt which tokens are values"
    if name in SOLVE:
        assert result["accuracy"] > 0.9
