"""MAD's compression task. Kills: tokens that are not uniform."""

import numpy as np
import pytest

from jaxzoo.tasks.mad import CompressionConfig
from tests.tasks.examples import N, assert_law, assert_refused, make

NOISY = CompressionConfig(vocab_size=12, length=16, noise_vocab_size=5, frac_noise=0.3)


@pytest.mark.parametrize("config", [CompressionConfig(), pytest.param(NOISY, marks=pytest.mark.full)])
def test_what_the_released_generator_gives(config):
    """Kills: another token at the end, a compression token or noise among the others, tokens that are not equally
    likely, noise at another rate, a target that is masked or of another position; an example in the wrong split."""
    for split in ("train", "test"):
        tokens, positions, targets = make(config, split=split)
        assert tokens.shape == (N, config.length)
        np.testing.assert_array_equal(targets, tokens)
        np.testing.assert_array_equal(positions, np.broadcast_to(np.arange(config.length), tokens.shape))
        body = tokens[:, :-1]
        assert (tokens[:, -1] == config.vocab_size - 1).all()
        assert body.max() < config.vocab_size - 1
        assert (body.sum(1) % 2 == (split == "test")).all()
        share = config.frac_noise / max(config.noise_vocab_size, 1)
        plain = [(1 - config.frac_noise) / config.n_plain] * config.n_plain
        law = np.array([*plain, *[share] * config.noise_vocab_size])
        for place in (0, config.length - 2):
            assert_law(np.bincount(body[:, place], minlength=config.vocab_size - 1), law)


def test_config_errors():
    """Kills: a vocabulary or length without a choice, and noise without tokens."""
    cases = [
        ({"vocab_size": 2}, "vocab_size=2 must exceed noise_vocab_size=0 by at least 3"),
        ({"noise_vocab_size": 14, "frac_noise": 0.1}, "vocab_size=16 must exceed noise_vocab_size=14"),
        ({"length": 2}, "length=2 must be at least 3"),
        ({"frac_noise": 0.2}, "frac_noise=0.2 must be 0 without tokens of noise; raise noise_vocab_size"),
        ({"frac_noise": 1.0, "noise_vocab_size": 2}, r"frac_noise=1.0 must be in \[0, 1\)"),
    ]
    assert_refused(CompressionConfig, cases)
