"""CAT, Figure 6: points and chosen rates. Kills: a rate chosen by the lengths that it predicts."""

import dataclasses
from typing import Any

import pytest

from experiments.cat_figure6 import experiment
from experiments.cat_lengths import LEARNED, ROTARY, YARN, by_length
from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig
from jaxzoo.models.presets import mqar_cat
from jaxzoo.sweep import Results
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from tests.experiments.hand_made import row

pytestmark = pytest.mark.full


def run(model, scores, *, task="MQAR", d_model=32, learning_rate=0.01, trained=32, yarn=None, seed=0):
    """Row of a run with an accuracy per length; the trained length is also the validation accuracy."""
    metrics = {f"asked/valid/accuracy/length={n}": score for n, score in scores.items()}
    metrics |= {f"YaRN {n}/valid/accuracy/length={n}": score for n, score in (yarn or {}).items()}
    metrics[f"valid/accuracy/length={trained}"] = scores[trained]
    point = {"task": task, "d_model": d_model, "model": model, "learning_rate": learning_rate, "seed": seed}
    return row(scores[trained], metrics, **point)


def test_the_papers_scale():
    """Kills: other lengths, widths or positions than the paper has, room for the trained length alone."""
    scale = experiment.scales["paper"]()
    assert len(scale.points) == 2 * 3 * 9 * 7 * 5
    assert {point["d_model"] for point in scale.points} == {32, 64, 128}
    assert {1e-4, 1e-2} < {round(point["learning_rate"], 9) for point in scale.points}
    for name in {point["model"] for point in scale.points}:
        point = {"task": "MQNAR", "d_model": 64, "model": name, "learning_rate": 1e-3, "seed": 4}
        config: Any = scale.config(point)
        also: Any = scale.also(point)
        assert config.model.n_layers == (1 if "CAT" in name else 2)
        assert config.model.max_positions == (1024 if name == LEARNED else None)
        assert (getattr(config.model.pattern[0], "positions", "none") == "rotary") == (name == ROTARY)
        assert (config.optimizer.learning_rate, config.train.seed) == (1e-3, 4)
        (train,), (valid,) = config.data.train, config.data.valid
        assert isinstance(train.task, NGramRecallConfig)
        assert (train.task, train.task.length, train.task.n_pairs, train.n_examples) == (valid.task, 128, 8, 100_000)
        assert [part.task.length for part in also["asked"].data.valid] == [32, 64, 128, 256, 512, 1024]
        assert [part.task.n_pairs for part in also["asked"].data.valid] == [2, 4, 8, 16, 32, 64]
        assert len(also) == (4 if name == ROTARY else 1)
        assert dataclasses.replace(also["asked"], data=config.data) == config
    one, two = (scale.config({**point, "model": name}).model for name in ("CAT", "CAT, 2 heads"))
    assert one == dataclasses.replace(mqar_cat(d_model=64, length=1024), mlp_bias=True)
    assert isinstance(two.pattern[0], ConvolutionAugmentedAttentionConfig)
    assert (two.pattern[0].n_heads, two.pattern[0].filters) == (2, "mixing")


def means(results, curve, **where):
    return [(n, score.mean) for n, (_, score) in by_length(results, curve, **where).items()]


def test_the_best_rate_is_that_of_the_trained_length():
    """Kills: a choice by the lengths that are to be predicted, or by the best seed; a curve of two rates, or of one
    seed."""
    rows = [
        run("CAT", {16: 0.0, 32: 0.9, 64: 0.1}, learning_rate=0.1),
        run("CAT", {16: 0.5, 32: 0.8, 64: 0.3}, learning_rate=0.1, seed=1),
        run("CAT", {16: 1.0, 32: 1.0, 64: 1.0}, learning_rate=0.2),
        run("CAT", {16: 1.0, 32: 0.6, 64: 1.0}, learning_rate=0.2, seed=1),
    ]
    found = means(Results(rows), "CAT", task="MQAR", d_model=32)
    assert found == [(16, 0.25), (32, pytest.approx(0.85)), (64, pytest.approx(0.2))]


def test_the_curve_of_yarn_is_rotary_up_to_the_trained_length():
    """Kills: a curve of YaRN without its short lengths, or of another model."""
    rows = [run(ROTARY, {16: 0.8, 32: 0.9, 64: 0.1}, yarn={64: 0.4}), run("CAT", {16: 1.0, 32: 1.0, 64: 1.0})]
    for curve, last in ((YARN, 0.4), (ROTARY, 0.1)):
        assert means(Results(rows), curve) == [(16, 0.8), (32, 0.9), (64, last)]
