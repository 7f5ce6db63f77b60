"""Costs of runs against sums by hand. Kills: FLOPs of a token taken for those of a step."""

import dataclasses

import pytest

from jaxzoo.sweep.run_spec import POWER, Rates, RunSpec
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples
from jaxzoo.train.speed import PASSES, train_flops
from tests.sweep.small import open_small


@pytest.fixture
def sweep(tmp_path):
    return open_small(tmp_path)


def test_flops_of_a_run_by_hand(sweep):
    """Kills: FLOPs of a token taken for those of a step, the backward pass left out, a head at every position."""
    config = next(task.trained for point, task in sweep.points if point["model"] == "attention")
    t, d, vocab, labelled = 16, 8, 32, 2
    # projections of q, k, v and output; scores and values of all t keys, masked ones too
    token = 2 * 4 * d * d + 2 * 2 * d * t
    head = 2 * d * vocab
    assert train_flops(config) == pytest.approx(PASSES * (token * t + head * labelled) * 8 * 6)
    assert train_flops(config, 2) == pytest.approx(train_flops(config) / 3)


def test_flops_of_a_mixture_are_the_mean_over_its_examples(sweep):
    """Kills: all batches counted as if they had the longest examples."""
    config = sweep.specs[0].trained
    longer = mqar.paper(length=32, n_pairs=2, vocab_size=40)
    of_longer = dataclasses.replace(config.data, train=(Examples(task=longer, n_examples=64),))
    both = dataclasses.replace(config.data, train=(*config.data.train, Examples(task=longer, n_examples=192)))
    one, other, mixed = (train_flops(dataclasses.replace(config, data=data)) for data in (config.data, of_longer, both))
    assert mixed == pytest.approx(0.25 * one + 0.75 * other)


def test_seconds_by_runs_of_the_same_mixers_and_a_power_of_the_flops(sweep):
    """Kills: an estimate by another mixer's speed where the same one was measured, or in proportion to the FLOPs."""
    task = {point["model"]: task for point, task in sweep.points}
    attention, convolution = task["attention"], task["convolution"]
    wide = RunSpec("wide", _of_width(attention.trained, 64), {})
    seconds = {t.id: 1e-3 * t.step_flops**POWER for t in (attention, wide)}
    rates = Rates([attention, convolution, wide], {**seconds, convolution.id: 7.0}, {})
    assert rates.seconds(convolution) == pytest.approx(7.0 * 6)
    rates = Rates([attention, wide], seconds, {})
    other = RunSpec("other", _of_width(attention.trained, 128), {})
    for unknown in (other, convolution):
        assert rates.seconds(unknown) == pytest.approx(6e-3 * unknown.step_flops**0.6, rel=1e-6)


def test_runs_that_stop_early(sweep):
    """Kills: a share of other mixers, one of the same mixers where the same program is known, steps of no run."""
    task = {(point["model"], point["learning_rate"], point["seed"]): task for point, task in sweep.points}
    attention, same = task["attention", 1e-3, 0], task["attention", 1e-2, 1]
    convolution, wide = task["convolution", 1e-3, 0], RunSpec("wide", _of_width(attention.trained, 64), {})
    wider = RunSpec("wider", _of_width(attention.trained, 128), {})
    tasks = [attention, task["attention", 1e-2, 0], same, convolution, wide, wider]
    done = {attention.id: {"steps": 3}, task["attention", 1e-2, 0].id: {"steps": 6}, wide.id: {"steps": 1}}
    rates = Rates(tasks, dict.fromkeys((same.id, convolution.id, wider.id), 1.0), done)
    assert rates.share(same) == pytest.approx((3 / 6 + 6 / 6) / 2)
    assert rates.share(wider) == pytest.approx((3 / 6 + 6 / 6 + 1 / 6) / 3)
    assert rates.share(convolution) is None
    assert rates.seconds(convolution) == pytest.approx(6 * rates.step_seconds(convolution))
    assert rates.seconds(same) == pytest.approx(0.75 * 6 * rates.step_seconds(same))


def _of_width(config, width: int):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, d_model=width))
