"""CAT, Figure 6: what it trains and asks, which run it shows, its claims on rows made by hand, and its picture."""

import dataclasses
from typing import Any

import pytest

from experiments.cat_figure6 import LAPTOPS, draw, experiment
from experiments.cat_lengths import CURVES, LEARNED, NONE, ROTARY, YARN, by_length
from jaxzoo.layers.rotary_scaling import NO_SCALING
from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig
from jaxzoo.models.presets import mqar_cat
from jaxzoo.sweep import Results
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from tests.experiments.hand_made import answers, curves, distinct_runs, row, verdict

pytestmark = pytest.mark.full


def run(model, scores, *, task="MQAR", d_model=32, learning_rate=0.01, trained=32, yarn=None, seed=0):
    """A run with accuracies by length; that of the trained length is the validation's own."""
    metrics = {f"asked/valid/accuracy/length={n}": score for n, score in scores.items()}
    metrics |= {f"YaRN {n}/valid/accuracy/length={n}": score for n, score in (yarn or {}).items()}
    metrics[f"valid/accuracy/length={trained}"] = scores[trained]
    point = {"task": task, "d_model": d_model, "model": model, "learning_rate": learning_rate, "seed": seed}
    return row(scores[trained], metrics, **point)


@pytest.mark.full
@pytest.mark.parametrize("name", ["smoke", "laptop"])
def test_every_point_has_a_run_of_its_own(name):
    """Kills: an axis that the config ignores, a size that no task has."""
    distinct_runs(experiment.scales[name]())


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


@pytest.mark.full
def test_no_laptop_run_ends_before_the_others():
    """Kills: a budget that depends on how soon a model is right."""
    scale = experiment.scales["laptop"]()
    assert {scale.config(point).train.stop_at_accuracy for point in scale.points} == {0.0}
    assert {scale.config(point).train.steps for point in scale.points} == {1_500}


@pytest.mark.slow
def test_yarn_changes_longer_examples_alone():
    """Kills: scaling that is dropped or that a factor misses, a model that is trained anew, other variables."""
    setting = dataclasses.replace(LAPTOPS, trained=16, asked=(8, 16, 32), tokens_a_pair=4, vocab_size=64)
    setting = dataclasses.replace(setting, examples=(64, 64, 64))
    point = {"task": "MQAR", "d_model": 16, "model": ROTARY, "learning_rate": 0.3, "seed": 0}
    config, also = setting.config(point), setting.also(point)
    assert config.model.pattern[0].rotary_scaling == NO_SCALING
    scaling = also["YaRN 32"].model.pattern[0].rotary_scaling
    assert (scaling.kind, scaling.factor, scaling.original_length) == ("yarn", 2.0, 16)
    assert list(also) == ["asked", "YaRN 32"]
    found = answers(config, also)
    lengths = [f"valid/accuracy/length={n}" for n in (8, 16, 32)]
    assert found["asked"].keys() > set(lengths)
    assert found["asked"][lengths[1]] == pytest.approx(found[""]["valid/accuracy"])
    assert found["YaRN 32"]["valid/loss"] != found["asked"]["valid/loss"]
    assert lengths[2] in found["YaRN 32"]
    assert lengths[0] not in found["YaRN 32"]


@pytest.mark.slow
def test_learned_positions_have_room_for_the_longest():
    """Kills: a model that cannot be asked beyond its training."""
    setting = dataclasses.replace(LAPTOPS, trained=16, asked=(16, 32), vocab_size=64, examples=(64, 64, 64))
    point = {"task": "MQNAR", "d_model": 16, "model": LEARNED, "learning_rate": 0.01, "seed": 0}
    found = answers(setting.config(point), setting.also(point))
    assert 0 <= found["asked"]["valid/accuracy/length=32"] <= 1


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


FLAT, FALLING = {16: 1.0, 32: 1.0, 64: 0.99}, {16: 1.0, 32: 0.9, 64: 0.2}


def test_keeps():
    """Kills: the trained length alone, one form of CAT for the other, LinCAT for CAT, the best seed for their mean."""
    assert verdict(experiment, "keeps-mqar", [run("CAT", FALLING), run("CAT, 2 heads", FLAT)]).verdict == "held"
    found = verdict(experiment, "keeps-mqar", [run("CAT", FALLING), run("LinCAT", FLAT)])
    assert found.verdict == "not held"
    assert found.numbers == "CAT 0.20 at least (d = 32, N = 64)"
    assert verdict(experiment, "keeps-lin-mqar", [run("CAT", FALLING), run("LinCAT", FLAT)]).verdict == "held"
    assert verdict(experiment, "keeps-mqnar", [run("CAT", FLAT)]).verdict == "not tested"
    wide = run("CAT", FALLING, d_model=64)
    assert verdict(experiment, "keeps-mqar", [run("CAT", FLAT), wide]).verdict == "not held"
    other_seed = run("CAT", {16: 1.0, 32: 1.0, 64: 0.5}, seed=1)
    found = verdict(experiment, "keeps-mqar", [run("CAT", FLAT), other_seed])
    assert found.verdict == "not held"
    assert found.numbers == "CAT 0.74 at least (d = 32, N = 64)"


def test_falls():
    """Kills: a mean of models, a fall of CAT's, one that is measured from the shortest length, YaRN left out."""
    rows = [run("CAT", FLAT), run("Mamba", FALLING), run("Based", {16: 1.0, 32: 0.6, 64: 0.29})]
    assert verdict(experiment, "falls-mqar", rows).verdict == "held"
    assert verdict(experiment, "falls-mqar", rows).numbers == "Based, d = 32: 0.60 to 0.29; Mamba, d = 32: 0.90 to 0.20"
    assert verdict(experiment, "falls-mqar", [*rows, run("Based", FLAT, d_model=64)]).verdict == "not held"
    kept = run(ROTARY, FALLING, yarn={64: 0.8})
    assert verdict(experiment, "falls-mqar", [*rows, kept]).verdict == "not held"
    assert verdict(experiment, "falls-mqar", [run("CAT", FLAT)]).verdict == "not tested"
    assert verdict(experiment, "falls-mqar", []).verdict == "not tested"


def test_alone():
    """Kills: a claim that holds although CAT fails, or although another model is as good."""
    others = [run("Mamba", FALLING), run("Based", {16: 1.0, 32: 1.0, 64: 0.97})]
    found = verdict(experiment, "alone-mqar", [run("CAT", FLAT), *others])
    assert found.verdict == "held"
    assert found.numbers.endswith("of two layers the best is Based with 0.97 (d = 32, N = 64)")
    assert verdict(experiment, "alone-mqar", [run("CAT", FALLING), *others]).verdict == "not held"
    assert verdict(experiment, "alone-mqar", [run("CAT", FLAT), run(LEARNED, FLAT)]).verdict == "not held"
    assert verdict(experiment, "alone-mqar", [run("CAT", FLAT)]).verdict == "not tested"


def test_positions():
    """Kills: a comparison at lengths that were not trained, or of one width with another."""
    rows = [run(NONE, {16: 1.0, 32: 0.5}), run(LEARNED, {16: 0.4, 32: 0.4}), run(ROTARY, {16: 0.4, 32: 0.9})]
    assert verdict(experiment, "positions", rows).verdict == "held"
    assert verdict(experiment, "positions", rows).numbers == "at N = 32, d = 32: 0.50 against 0.90"
    assert verdict(experiment, "positions", rows[:2]).verdict == "not held"
    wide = run(ROTARY, {16: 0.4, 32: 0.9}, d_model=64)
    assert verdict(experiment, "positions", [rows[0], wide]).verdict == "not tested"


def test_the_picture():
    """Kills: panels that are exchanged, a curve or a guessing line that is missing, no mark of the trained length,
    marks without runs, the best seed in place of the mean, means without the range of the seeds."""
    rows = [
        run("CAT", FLAT),
        run(ROTARY, FALLING, yarn={64: 0.4}),
        run("Mamba", {16: 0.1, 32: 0.1, 64: 0.0}, task="MQNAR", d_model=64),
        run("Mamba", {16: 0.3, 32: 0.2, 64: 0.0}, task="MQNAR", d_model=64, seed=1),
    ]
    rows[0]["guess"] = {f"asked/valid/accuracy/length={length}": 1 / length for length in (16, 32, 64)}
    figure = draw(Results(rows))
    panels = {panel.get_title(): curves(panel) for panel in figure.axes}
    assert list(panels) == [
        "MQAR, model width 32",
        "MQAR, model width 64",
        "MQNAR, model width 32",
        "MQNAR, model width 64",
    ]
    assert list(panels["MQAR, model width 32"]) == ["CAT", ROTARY, YARN, "guessing", "trained"]
    assert panels["MQAR, model width 32"]["guessing"] == ([16, 32, 64], [1 / 16, 1 / 32, 1 / 64])
    assert panels["MQAR, model width 32"][YARN] == ([16, 32, 64], [1.0, 0.9, 0.4])
    assert "guessing" not in panels["MQNAR, model width 64"]
    assert panels["MQNAR, model width 64"]["Mamba"] == ([16, 32, 64], [0.2, pytest.approx(0.15), 0.0])
    bars = [bar.get_segments()[0][:, 1].tolist() for bar in figure.axes[3].collections if hasattr(bar, "get_segments")]
    assert bars == [[0.1, 0.3], [0.1, 0.2]]
    assert panels["MQAR, model width 64"] == {}
    assert figure.axes[0].lines[-1].get_xdata()[0] == 32
    assert set(CURVES) >= {line.get_label() for panel in figure.axes for line in panel.lines} - {"guessing", "trained"}
