"""Scales of Zoology's figures, read from the paper and release by hand. Kills: another grid or protocol."""

import pytest

from experiments import zoology_figure2, zoology_figure2_bottom, zoology_figure6, zoology_figure7
from jaxzoo.models.presets import mqar_attention, mqar_base_conv, mqar_h3, mqar_hyena, mqar_rwkv
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.train.config import RunConfig

pytestmark = pytest.mark.full

FILES = {
    "figure2": zoology_figure2,
    "figure2_bottom": zoology_figure2_bottom,
    "figure6": zoology_figure6,
    "figure7": zoology_figure7,
}


def config(scale, point):
    """The run of a point, which trains."""
    found = RunSpec.of(scale, point).config
    assert isinstance(found, RunConfig)
    return found


PRESETS = {
    "attention": mqar_attention,
    "BaseConv": mqar_base_conv,
    "Hyena": mqar_hyena,
    "H3": mqar_h3,
    "RWKV-4": mqar_rwkv,
}


@pytest.mark.parametrize(("scale", "variant"), [("paper", "paper"), ("release", "release")])
@pytest.mark.parametrize("name", PRESETS)
def test_the_models_are_those_of_the_presets(name, scale, variant):
    made = zoology_figure2.experiment.scales[scale]()
    where = {"model": name, "length": 128, "d_model": 256, "learning_rate": 1e-2}
    (point,) = [point for point in made.points if dict(point) == where]
    assert config(made, point).model == PRESETS[name](d_model=256, length=128, variant=variant)


def at(name, scale, **where):
    """The run of the only point of a scale with these coordinates."""
    made = FILES[name].experiment.scales[scale]()
    (point,) = [point for point in made.points if where.items() <= dict(point).items()]
    return config(made, point)


PAPER_SIZES = [
    # Batch: 8 for N or d from 512 on, 16 from 256 on, else 64. Steps: 64 epochs of the full batches of 100,000.
    ("figure2", {"length": 64, "d_model": 64, "model": "Hyena"}, 4, 64, 64 * 1_562),
    ("figure2", {"length": 64, "d_model": 512, "model": "Hyena"}, 4, 8, 64 * 12_500),
    ("figure2", {"length": 512, "d_model": 64, "model": "H3"}, 64, 8, 64 * 12_500),
    ("figure2_bottom", {"length": 256, "d_model": 128, "model": "BaseConv"}, 16, 16, 64 * 6_250),
    ("figure6", {"n_pairs": 64, "d_model": 64, "model": "sliding window of 32"}, 64, 16, 64 * 6_250),
    ("figure7", {"d_model": 128, "model": "Hyena, heads of 8"}, 16, 16, 64 * 6_250),
]


@pytest.mark.parametrize(("name", "where", "pairs", "batch", "steps"), PAPER_SIZES)
def test_the_papers_protocol(name, where, pairs, batch, steps):
    run = at(name, "paper", learning_rate=1e-4, **where)
    assert (run.train.batch_size, run.train.steps, run.train.stop_at_accuracy) == (batch, steps, 0)
    assert run.train.steps // run.train.eval_every == 64
    (train,), (valid,) = run.data.train, run.data.valid
    assert (train.n_examples, valid.n_examples) == (100_000, 3_000)
    assert (train.task.n_pairs, train.task.vocab_size, train.task.power) == (pairs, 8192, 0.1)
    assert (run.optimizer.weight_decay, run.optimizer.warmup_fraction, run.optimizer.clip_norm) == (0.1, 0.1, 0)
    assert (run.model.mlp, run.model.n_layers, run.model.vocab_size) == ("gelu", 2, 8192)


@pytest.mark.parametrize(("name", "scale", "runs"), [
    ("figure2", "paper", 7 * 4 * 4 * 4),
    ("figure2", "release", 7 * 3 * 4 * 4),
    ("figure2_bottom", "paper", 6 * 4 * 4 * 4),
    ("figure6", "paper", 7 * 4 * 3 * 4),
    ("figure7", "paper", 5 * 3 * 4),
])  # fmt: skip
def test_the_papers_grids(name, scale, runs):
    assert len(FILES[name].experiment.scales[scale]().points) == runs


def test_the_released_protocol():
    run = at("figure2", "release", length=256, d_model=64, model="attention", learning_rate=1e-2)
    assert (run.train.batch_size, run.train.steps, run.train.stop_at_accuracy) == (256, 64 * 390, 0.99)
    assert (run.optimizer.warmup_fraction, run.optimizer.decay_all, run.model.embed_dropout) == (0, True, 0.1)
    assert (run.model.mlp, run.model.max_positions) == ("identity", 256)
    task = run.data.train[0].task
    assert (task.power, task.distinct_values, task.n_pairs, task.fillers) == (0.01, True, 16, "zero")


@pytest.mark.parametrize("name", FILES)
def test_only_models_with_attention_know_positions(name):
    made = FILES[name].experiment.scales["paper"]()
    points = {point["model"]: point for point in made.points}
    runs = {model: config(made, point).model.max_positions for model, point in points.items()}
    with_attention = ("attention", "window", "blocks", "BaseConv and attention")
    assert {model for model, rows in runs.items() if rows} == {
        model for model in runs if any(word in model for word in with_attention)
    }
