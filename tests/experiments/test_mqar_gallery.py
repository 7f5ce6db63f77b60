"""The gallery of mixers on MQAR. Kills: a mixer that passes the contract and does not learn."""

import math
from typing import Any

import jax
import pytest

from experiments.mqar_gallery import LENGTH, VOCAB_SIZE, config, experiment, scores
from jaxzoo.evals.validation import Validation
from jaxzoo.mixers import MIXERS, RetNetConfig
from jaxzoo.sweep import Results
from jaxzoo.train.session import Session
from tests.experiments.hand_made import row

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
"""Mixers that keep all keys of so short a text (Zoology, Prop. 4.3), and Based's; trained on the laptop they have at
least 0.9."""


def run(mixer, accuracy, *, learning_rate=0.1, seed=0, state_bytes: int | None = 100):
    made = row(accuracy, mixer=mixer, d_model=8, learning_rate=learning_rate, seed=seed)
    return {**made, "state_bytes": state_bytes}


def test_all_mixers_are_shown():
    """Kills: a registered mixer that is left out."""
    shown = {point["mixer"] for point in experiment.scales["laptop"]().points}
    assert shown >= set(MIXERS)


def test_the_run_is_that_of_the_config_file():
    """Kills: another task, mixer, width or learning rate than the point says."""
    made: Any = config({"mixer": "ret_net", "d_model": 24, "learning_rate": 0.5, "seed": 3}, steps=7)
    assert isinstance(made.model.layers[1], RetNetConfig)
    assert (made.model.d_model, made.model.vocab_size, made.model.max_length) == (24, VOCAB_SIZE, LENGTH)
    assert (made.optimizer.learning_rate, made.train.seed, made.train.steps) == (0.5, 3, 7)


def test_scores_are_the_best_mean_not_the_mean_of_the_best():
    """Kills: the best learning rate of each seed, which flatters what varies; a diverged seed that is left out."""
    rows = [run("a", 1.0), run("a", 0.0, seed=1), run("a", 0.5, learning_rate=0.2)]
    rows.append(run("a", 0.7, learning_rate=0.2, seed=1))
    rows += [run("a", 0.9, learning_rate=0.3), run("a", None, learning_rate=0.3, seed=1)]
    found = scores(Results([*rows, run("b", None)]))
    assert list(found) == ["a"]
    assert found["a"].accuracy == pytest.approx(0.6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MIXERS))
def test_every_mixer_learns(name):
    """Kills: a mixer that passes the contract and does not train, or that does not recall what its paper says."""
    session, losses = Session(config({"mixer": name, "d_model": 64, "learning_rate": 3e-3, "seed": 0})), []
    with jax.set_mesh(session.mesh):
        state, stream = session.init_state(), session.dataset.train()
        for _ in range(session.config.train.steps):
            state, metrics = session.update(state, next(stream))
            losses.append(float(metrics["loss"]))
        accuracy = Validation(session).evaluate(state.variables)["valid/accuracy"]
    assert losses[0] == pytest.approx(math.log(VOCAB_SIZE), rel=0.1)
    assert losses[-1] < math.log(VOCAB_SIZE / 2) + 0.1, "it has not even learnt which tokens are values"
    if name in SOLVE:
        assert accuracy > 0.9
