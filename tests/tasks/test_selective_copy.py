"""Selective copying: examples, laws, the split, and an oracle that only reads."""

import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks import selective_copy
from jaxzoo.tasks.selective_copy import SEPARATOR, SelectiveCopyConfig

CONFIGS = {
    "paper": selective_copy.paper(),
    **{
        f"small-{repeats}": SelectiveCopyConfig(vocab_size=13, length=11, n_signals=4, n_noise=4, repeats=repeats)
        for repeats in ("none", "copied", "once")
    },
}
parametrize_configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def make(config, n=200, seed=0, split="train"):
    batch = config.labelled(seed, np.arange(n), split)
    return tuple(np.asarray(part) for part in (batch.tokens, batch.positions, batch.targets))


@parametrize_configs
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_is_right_and_shuffled_labels_are_chance(config, split):
    """Kills answers that the prompt does not give, an order that is not that of the prompt, a target one place late."""
    tokens, positions, targets = make(config, split=split)
    said = np.take_along_axis(selective_copy.oracle(tokens, config), positions, axis=1)
    np.testing.assert_array_equal(said, targets)
    asked = targets != UNLABELLED
    shuffled = np.random.default_rng(0).permutation(targets[asked])
    chance = 1 / config.n_signal_tokens
    assert abs((said[asked] == shuffled).mean() - chance) < 5 * np.sqrt(chance / asked.sum())


@parametrize_configs
def test_the_model_reads_what_it_should_have_said(config):
    """Kills a separator in the wrong place, and inputs behind it that are not the targets before."""
    tokens, positions, targets = make(config)
    np.testing.assert_array_equal(positions, np.broadcast_to(positions[0], positions.shape))
    np.testing.assert_array_equal(np.diff(positions[0]), 1)
    assert positions[0, 0] == config.prompt_length
    assert (tokens[:, config.prompt_length] == SEPARATOR).all()
    behind = tokens[:, config.prompt_length + 1 :]
    np.testing.assert_array_equal(behind, np.where(targets == UNLABELLED, SEPARATOR, targets)[:, :-1])
    assert (tokens[:, : config.prompt_length] != SEPARATOR).all()


def test_the_oracle_reads_a_worked_example():
    """Kills an oracle that echoes the generator: the paper's Table 1 by hand, a, n, n, c, n, k, with c twice."""
    config = SelectiveCopyConfig(vocab_size=13, length=11, n_signals=4, n_noise=4, repeats="once")
    tokens = np.array([[5, 1, 2, 7, 3, 9, 7, 0, 5, 7, 9]])
    assert selective_copy.oracle(tokens, config)[0].tolist() == [-100] * 7 + [5, 7, 9, -100]


def test_places_and_tokens_are_uniform():
    """Kills signals that stand early or late, and tokens that never come."""
    config = CONFIGS["small-copied"]
    tokens, _, targets = make(config, n=8000)
    signal = tokens[:, : config.prompt_length] >= config.first_signal
    assert (signal.sum(1) == config.n_signals).all()
    spread = np.sqrt(8000 * 4 / 7 * 3 / 7)
    assert np.abs(signal.sum(0) - 8000 * 4 / 7).max() < 5 * spread
    for place in range(config.n_signals):
        counts = np.bincount(targets[:, place] - config.first_signal, minlength=8)
        assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    noise = np.bincount(tokens[:, : config.prompt_length][~signal], minlength=5)
    assert noise[0] == 0
    assert np.abs(noise[1:] - 6000).max() < 5 * np.sqrt(6000)


@parametrize_configs
def test_no_example_is_in_both_splits(config):
    """Kills a test set that was trained on: the kind of every example is read off its signals."""
    for split, odd in (("train", 0), ("test", 1)):
        tokens, _, _ = make(config, split=split)
        for prompt in tokens[:, : config.prompt_length]:
            signals = prompt[prompt >= config.first_signal] - config.first_signal
            kind = signals.sum()
            if config.repeats == "none":
                kind += np.triu(signals[:, None] > signals[None, :], 1).sum()
            assert kind % 2 == odd


@parametrize_configs
def test_an_example_is_a_function_of_its_number(config):
    """Kills examples that depend on their batch."""
    whole = make(config, n=9)
    part = config.labelled(0, np.array([7, 2]))
    for all_of_them, some in zip(whole, (part.tokens, part.positions, part.targets), strict=True):
        np.testing.assert_array_equal(all_of_them[[7, 2]], some)
    other = make(config, n=9, seed=1)
    assert (other[0] != whole[0]).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_signals": 1}, "n_signals=1 must be at least 2"),
        ({"length": 31}, "length=31 must be at least 32"),
        ({"vocab_size": 130}, r"vocab_size=130 must leave an even number of signals .*; take 131"),
        ({"n_noise": 200}, r"vocab_size=129 must leave .*; take 203"),
        ({"n_noise": 118}, r"n_signals=16 must be at most 10, the signals of the vocabulary; raise vocab_size"),
        ({"repeats": "twice"}, "repeats='twice' must be one of 'none', 'copied', 'once'"),
    ],
)
def test_config_errors(fields, message):
    """Kills a task that has no examples."""
    with pytest.raises(ValueError, match=message):
        SelectiveCopyConfig(**fields)
