"""Selective copying. Kills: outputs that are not the signals in their order."""

import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks import selective_copy
from jaxzoo.tasks.selective_copy import SEPARATOR, SelectiveCopyConfig
from tests.tasks.examples import SMALL, N, assert_refused, make

CONFIGS = {**{name: c for name, c in SMALL.items() if name.startswith("copy")}, "paper": selective_copy.paper()}
parametrize_configs = pytest.mark.parametrize(
    "config",
    [pytest.param(c, id=name, marks=pytest.mark.full if name == "paper" else []) for name, c in CONFIGS.items()],
)


@parametrize_configs
def test_the_model_reads_what_it_should_have_said(config):
    """Kills: a separator in the wrong place, and inputs after it that are not the targets before."""
    tokens, positions, targets = make(config)
    np.testing.assert_array_equal(positions, np.broadcast_to(positions[0], positions.shape))
    np.testing.assert_array_equal(np.diff(positions[0]), 1)
    assert positions[0, 0] == config.prompt_length
    assert (tokens[:, config.prompt_length] == SEPARATOR).all()
    rest = tokens[:, config.prompt_length + 1 :]
    np.testing.assert_array_equal(rest, np.where(targets == UNLABELLED, SEPARATOR, targets)[:, :-1])
    assert (tokens[:, : config.prompt_length] != SEPARATOR).all()


def test_places_and_tokens_are_uniform():
    """Kills: signals that stand early or late, and tokens that never come."""
    config = SMALL["copy-repeats"]
    tokens, _, targets = make(config)
    signal = tokens[:, : config.prompt_length] >= config.first_signal
    assert (signal.sum(1) == config.n_signals).all()
    share = config.n_signals / config.prompt_length
    assert np.abs(signal.mean(0) - share).max() < 5 * np.sqrt(share * (1 - share) / N)
    for place in range(config.n_signals):
        counts = np.bincount(targets[:, place] - config.first_signal, minlength=config.n_signal_tokens)
        mean = N / config.n_signal_tokens
        assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)
    noise = np.bincount(tokens[:, : config.prompt_length][~signal], minlength=config.n_noise + 1)
    assert noise[0] == 0
    mean = noise.sum() / config.n_noise
    assert np.abs(noise[1:] - mean).max() < 5 * np.sqrt(mean)


@parametrize_configs
def test_the_signals_tell_the_split(config):
    """Kills: a swap in the wrong direction: the kind of every example is read off its signals."""
    for split, odd in (("train", 0), ("test", 1)):
        tokens = make(config, split=split).tokens[:200]
        for prompt in tokens[:, : config.prompt_length]:
            signals = prompt[prompt >= config.first_signal] - config.first_signal
            kind = signals.sum()
            if config.repeats == "none":
                kind += np.triu(signals[:, None] > signals[None, :], 1).sum()
            assert kind % 2 == odd


def test_config_errors():
    """Kills: a task that has no examples."""
    cases = [
        ({"n_signals": 1}, "n_signals=1 must be at least 2"),
        ({"length": 31}, "length=31 must be at least 32"),
        ({"vocab_size": 130}, r"vocab_size=130 must leave an even number of signals .*; take 131"),
        ({"n_noise": 200}, r"vocab_size=129 must leave .*; take 203"),
        ({"n_noise": 118}, r"n_signals=16 must be at most 10, the signals of the vocabulary; raise vocab_size"),
        ({"repeats": "twice"}, "repeats='twice' must be one of 'none', 'copied', 'once'"),
    ]
    assert_refused(SelectiveCopyConfig, cases)
