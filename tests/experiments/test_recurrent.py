"""Experiments on recurrent mixers: delta rules on MQAR, state tracking, hybrids; claims on rows made by hand."""

import importlib

import pytest

from experiments import delta_mqar, hybrid_ratio, state_tracking
from jaxzoo.mixers import AttentionConfig
from tests.experiments.hand_made import distinct_runs, row, verdict


@pytest.mark.full
@pytest.mark.parametrize("name", ["delta_mqar", "state_tracking", "hybrid_ratio"])
def test_every_point_has_a_run_of_its_own(name):
    """Kills an axis that the config ignores. Hybrids of attention alone are one run whatever their linear mixer."""
    experiment = importlib.import_module(f"experiments.{name}").experiment
    for scale in (make() for make in experiment.scales.values()):
        if name == "hybrid_ratio":
            points = [point for point in scale.points if point["attention"] < 4]
            scale = type(scale)(about=scale.about, points=points, config=scale.config)
        distinct_runs(scale)


def recalled(model, size, state, accuracy):
    return {**row(accuracy, model=model, size=size, learning_rate=0.1, seed=0), "state_bytes": state}


def test_recall_is_compared_at_equal_states():
    """Kills a comparison with a smaller state, a tie that counts as a win, a loss at one size that is ignored."""
    judge = lambda rows: verdict(delta_mqar.experiment, "delta", rows).verdict  # noqa: E731
    others = [recalled(name, 1, 100, 0.5) for name in ("Based", "GLA", "Mamba-2")]
    assert judge([*others, recalled("DeltaNet", 4, 100, 0.6)]) == "held"
    assert judge([*others, recalled("DeltaNet", 4, 100, 0.51)]) == "not held"
    assert judge([*others, recalled("DeltaNet", 4, 120, 0.6)]) == "not tested"
    more = [recalled("GLA", 2, 400, 0.9)]
    assert judge([*others, *more, recalled("DeltaNet", 4, 100, 0.6), recalled("DeltaNet", 1, 400, 0.8)]) == "not held"
    assert judge(others) == "not tested"


def test_recall_is_learned_at_three_sizes_and_asked_at_the_last():
    """Kills: a validation on few pairs, a size that is left out or seen more often than the others."""
    for module in (delta_mqar, hybrid_ratio):
        scale = module.experiment.scales["laptop"]()
        data = scale.config(scale.points[0]).data
        assert [part.task.n_pairs for part in data.train] == [*module.FEWER, module.N_PAIRS]
        assert len({part.n_examples for part in data.train}) == 1
        assert [part.task.n_pairs for part in data.valid] == [module.N_PAIRS]


def tracked(task, model, *accuracies):
    metrics = {f"valid/accuracy/length={n}": x for n, x in zip(state_tracking.LENGTHS, accuracies, strict=True)}
    return row(sum(accuracies) / 3, metrics, task=task, model=model, learning_rate=0.1, seed=0)


def test_state_is_tracked_at_all_lengths_or_not():
    """Kills a task that is solved at its training length alone, one model for all, `none` that means `not all`, lengths
    that no run solves together, each with a learning rate of its own."""
    judge = lambda name, rows: verdict(state_tracking.experiment, name, rows).verdict  # noqa: E731
    one, other = tracked("parity", "RWKV-7", 1, 0.97, 0.6), tracked("parity", "RWKV-7", 0.99, 0.6, 0.97)
    other["point"]["learning_rate"] = 0.2
    s_3 = tracked("S_3", "RWKV-7", 1, 1, 1)
    assert judge("rwkv7", [one, other, s_3]) == "not held"
    assert judge("rwkv7", [tracked("parity", "RWKV-7", 1, 1, 1), other, s_3]) == "held"
    first, second = state_tracking.NEGATIVE
    solved = [tracked("parity", first, 1, 1, 0.99), tracked("parity", second, 1, 1, 1)]
    assert judge("parity", solved) == "held"
    assert judge("parity", [solved[0], tracked("parity", second, 1, 1, 0.6)]) == "not held"
    assert judge("parity", solved[:1]) == "not tested"
    failed = [tracked("parity", name, 1, 0.7, 0.6) for name in state_tracking.POSITIVE]
    assert judge("positive", failed) == "held"
    assert judge("positive", [*failed[1:], tracked("parity", "GLA", 1, 1, 1)]) == "not held"


def mixed(task, share, score, rate=0.1, seed=0):
    metrics = {hybrid_ratio.BITS: score} if task == "text" else {}
    return row(score, metrics, task=task, linear="Mamba-2", attention=share, learning_rate=rate, seed=seed)


def test_hybrids():
    """Kills attention in other layers than the last of each part, the worst bits per byte for the best, the best seed
    for the mean."""
    layers = [[isinstance(mixer, AttentionConfig) for mixer in hybrid_ratio.hybrid(None, n, 2)] for n in (0, 1, 2, 4)]
    assert layers == [[False] * 4, [False] * 3 + [True], [False, True] * 2, [True] * 4]
    judge = lambda name, rows: verdict(hybrid_ratio.experiment, name, rows).verdict  # noqa: E731
    shares = hybrid_ratio.SHARES
    recalls = [mixed("recall", share, score) for share, score in zip(shares, (0.2, 0.5, 0.9, 0.9), strict=True)]
    assert judge("recall", recalls) == "held"
    assert judge("recall", [*recalls[:3], mixed("recall", 4, 0.5)]) == "not held"
    stable = [mixed("text", share, 2.0 + share / 100) for share in shares]
    assert judge("text", stable) == "held"
    assert judge("text", [*stable[1:], mixed("text", 0, 2.5)]) == "not held"
    assert judge("text", [*stable[1:], mixed("text", 0, 2.5), mixed("text", 0, 2.0, rate=0.2)]) == "held"
    assert judge("text", [*stable[1:], mixed("text", 0, 2.5), mixed("text", 0, 2.0, seed=1)]) == "not held"
    assert judge("control", [*recalls[:3], *(mixed("recall", 4, each, seed=each) for each in (0, 1))]) == "not held"
