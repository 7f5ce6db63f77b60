"""Forgetting MQAR. Kills: the first value as the target, an update of no key."""

import itertools

import numpy as np
import pytest

from jaxzoo.tasks.forgetting_mqar import NEUTRAL, ForgettingMQARConfig
from tests.tasks.examples import SMALL, assert_law, assert_refused, make

LAWS = ForgettingMQARConfig(vocab_size=26, length=24, n_pairs=4, n_updates=2)
CONFIGS = {
    "small": SMALL["forgetting"],
    "laws": LAWS,
    "default": ForgettingMQARConfig(),
    "all-again": ForgettingMQARConfig(vocab_size=33, length=32, n_pairs=4, n_updates=4),
}
parametrize_configs = pytest.mark.parametrize(
    "config",
    [
        pytest.param(c, id=name, marks=[] if name in ("small", "laws") else pytest.mark.full)
        for name, c in CONFIGS.items()
    ],
)


def draw(config, split="train"):
    """Draws examples; more of `LAWS`, for its statistical tests."""
    return make(config, 12_000, 3, split) if config is LAWS else make(config, split=split)


def bindings(tokens, config):
    """Keys and values of the context, in their order."""
    context = tokens[:, : config.context_length]
    return context[:, ::2], context[:, 1::2]


@parametrize_configs
def test_layout_of_every_example(config):
    """Kills: an update of a key that is not there, or of one twice, or to its old value; the first value as target, so
    that MQAR's solution is right; a query that is missing, out of place, or asks for another pair's value; a swap that
    leaves a query or an update behind, a swap in the wrong direction."""
    for split in ("train", "test"):
        n, half = config.n_pairs, config.vocab_size // 2
        tokens, positions, targets = draw(config, split)
        for example, asked, answers in zip(
            tokens[:300].tolist(), positions[:300].tolist(), targets[:300].tolist(), strict=True
        ):
            keys, values = example[: config.context_length : 2], example[1 : config.context_length : 2]
            assert all(1 <= key < half for key in keys)
            assert all(half <= value < config.vocab_size for value in values)
            assert len(set(keys[:n])) == len(set(values[:n])) == n
            assert len(set(keys[n:])) == config.n_updates
            assert set(keys[n:]) <= set(keys[:n])
            for key, value in zip(keys[n:], values[n:], strict=True):
                assert values[keys.index(key)] != value
            assert all(position >= config.context_length and position % 2 == 0 for position in asked)
            assert [example[position] for position in asked] == keys[:n]
            for key, answer in zip(keys[:n], answers, strict=True):
                assert answer == [v for k, v in zip(keys, values, strict=True) if k == key][-1]
            rest = [token for t, token in enumerate(example) if t >= config.context_length and t not in asked]
            assert config.fillers == "any" or set(rest) <= {NEUTRAL}
        keys, values = bindings(tokens, config)
        assert ((values[:, :n] == targets).sum(1) == n - config.n_updates).all()
        inversions = np.triu(keys[:, :n, None] > keys[:, None, :n], 1).sum((1, 2))
        assert ((inversions + keys[:, :n].sum(1) + values.sum(1)) % 2 == (split == "test")).all()


@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=pytest.mark.full)])
def test_keys_values_and_updates_are_uniform(split):
    """Kills: a split that shows in one token, an update that prefers the first pairs or keeps their order, a new value
    that avoids another pair's, or is mostly a neighbour of the old one."""
    keys, values = bindings(draw(LAWS, split).tokens, LAWS)
    for pair in range(LAWS.n_pairs):
        assert_law(np.bincount(keys[:, pair], minlength=LAWS.n_keys + 1)[1:], np.ones(LAWS.n_keys))
    for place in range(LAWS.n_pairs + LAWS.n_updates):
        assert_law(np.bincount(values[:, place] - LAWS.first_value, minlength=LAWS.n_values), np.ones(13))
    again = (keys[:, 4:, None] == keys[:, None, :4]).argmax(-1)
    codes = again[:, 0] * 4 + again[:, 1]
    pairs = [a * 4 + b for a, b in itertools.permutations(range(4), 2)]
    assert_law(np.bincount(codes, minlength=16)[pairs], np.ones(12))
    old = np.take_along_axis(values[:, :4], again, 1)
    steps = (values[:, 4:] - old) % LAWS.n_values
    assert_law(np.bincount(steps.ravel(), minlength=13)[1:], np.ones(12))
    assert abs((keys[:, 0] < keys[:, 1]).mean() - 0.5) < 0.025
    assert abs(((keys[:, 0] + values[:, 0]) % 2).mean() - 0.5) < 0.025


@pytest.mark.full
def test_the_splits_share_all_examples_by_halves():
    """Kills: leakage where it is likeliest: so few examples exist that each split is seen nearly whole."""
    config = CONFIGS["small"]
    train, test = ({row.tobytes() for row in make(config, 40_000, 0, split).tokens} for split in ("train", "test"))
    keys, old, again, new, orders = 4 * 3, 6 * 5, 2, 5, 2
    assert not train & test
    assert len(train) + len(test) == keys * old * again * new * orders
    assert abs(len(train) - len(test)) < 0.1 * (len(train) + len(test))


def test_config_errors():
    """Kills: a task that has no examples, and a message that names the wrong field."""
    cases = [
        ({"n_pairs": 1, "n_updates": 1}, "n_pairs=1 must be at least 2: one key alone would tell train from test"),
        ({"n_updates": 9}, "n_updates=9 must be at most n_pairs=8"),
        ({"n_updates": 0}, "n_updates=0 must be positive"),
        ({"length": 65}, "length=65 must be even"),
        ({"length": 38}, "length=38 must be at least 40: 8 pairs, 4 updates and 8 queries; raise length"),
        ({"vocab_size": 64}, "vocab_size=64 must exceed length=64; raise vocab_size or lower length"),
        ({"power": 0.0}, "power=0.0 must be positive"),
        ({"power": 23.0}, "power=23.0 must be smaller: in float32 some slots have probability 0"),
        ({"fillers": "random"}, "fillers='random' must be one of 'zero', 'any'"),
    ]
    assert_refused(ForgettingMQARConfig, cases)
