"""Continuous MQAR. Kills: a key with two values, orders that depend on each other."""

import numpy as np
import pytest

from jaxzoo.mixers import AttentionConfig
from jaxzoo.tasks.continuous_mqar import ContinuousMQARConfig, preset
from jaxzoo.tasks.mad import CompressionConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import LanguageModelConfig, RunConfig
from tests.tasks.examples import N, assert_law, assert_refused, make

THREE = preset(4, 3, n_keys=9, n_values=6)


@pytest.mark.parametrize("config", [THREE, pytest.param(ContinuousMQARConfig(), marks=pytest.mark.full)])
def test_what_the_released_generator_gives(config):
    """Kills: a pair that is missing from a pass or has another value there, keys or values that repeat, a query that is
    missing, has a value, or another answer than its pair, answers that are not at the end; an example in the wrong
    split."""
    n, size = config.n_pairs, config.n_values + 1
    assert config.length == (config.n_passes + 1) * n
    for split in ("train", "test"):
        tokens, positions, targets = make(config, split=split)
        np.testing.assert_array_equal(positions, np.broadcast_to(np.arange(config.n_passes * n, config.length), (N, n)))
        keys, values = np.divmod(tokens.reshape(N, config.n_passes + 1, n), size)
        assert (values[:, -1] == 0).all()
        assert (values[:, :-1] > 0).all()
        for example in range(200):
            passes = [dict(zip(*pair, strict=True)) for pair in zip(keys[example], values[example] - 1, strict=True)]
            assert len(passes[0]) == len(set(passes[0].values())) == n
            assert all(each == passes[0] for each in passes[:-1])
            assert dict(zip(keys[example, -1], targets[example], strict=True)) == passes[0]
        first = keys[:, 0]
        inversions = np.triu(first[:, :, None] > first[:, None, :], 1).sum((1, 2))
        assert ((inversions + first.sum(1) + values[:, 0].sum(1) - n) % 2 == (split == "test")).all()


def test_orders_and_pairs_are_drawn_independently():
    """Kills: passes or queries in the order of the first pass, or in one order; a key that favours a value, which is
    what per_sequence_mapping=False would mean by its name; a key or a value that is never drawn."""
    tokens, _, targets = make(THREE)
    keys, values = np.divmod(tokens.reshape(N, 4, 4), 7)
    for later in (1, 2, 3):
        place = (keys[:, later] == keys[:, :1, 0]).argmax(1)
        assert_law(np.bincount(place, minlength=4), np.ones(4))
    between = (keys[:, 3] == keys[:, 1:2, 0]).argmax(1)
    assert_law(np.bincount(between, minlength=4), np.ones(4))
    assert_law(np.bincount((9 * (values[:, 0, 0] - 1) + keys[:, 0, 0]), minlength=54), np.ones(54))
    assert_law(np.bincount(targets[:, 0], minlength=6), np.ones(6))


def test_config_errors():
    """Kills: sizes of which no example exists, and sizes that do not fit together."""
    assert ContinuousMQARConfig().n_pairs == 8
    assert ContinuousMQARConfig() == preset()
    cases = [
        ({"length": 17}, "length=17 must be a multiple of 2: n_passes=1 times the pairs, and the queries"),
        ({"length": 3, "n_passes": 2}, "length=3 must be at least 6, for two pairs"),
        ({"vocab_size": 8192}, r"vocab_size=8192 must be a multiple of n_values \+ 1 = 4097"),
        ({"vocab_size": 70, "n_values": 9, "length": 16}, "vocab_size=70 must be at least 80, for 8 different keys"),
        ({"vocab_size": 70, "n_values": 6, "length": 16}, "n_values=6 must be at least 8"),
    ]
    assert_refused(ContinuousMQARConfig, cases)


def test_model_and_task_must_be_of_one_kind():
    """Kills: an autoencoder that is asked for the next token, a language model that is asked for the token that it
    reads, a model without the values of the task, a mixture for two kinds of model."""
    other = Examples(task=MQARConfig(), n_examples=64)
    autoencoded = Examples(task=CompressionConfig(), n_examples=64)
    pairs = Examples(task=THREE, n_examples=64)
    sizes = {"pattern": (AttentionConfig(),), "vocab_size": THREE.vocab_size}
    for examples, fields, message in (
        (pairs, {}, "pair_values=0 must be 6 for these data; set --model.pair-values 6$"),
        (pairs, {"pair_values": 2}, "pair_values=2 must be 6 for these data"),
        (pairs, {"pair_values": 6, "decode_last": True}, "decode_last=True must be False for these data"),
        (other, {"pair_values": 6}, "pair_values=6 must be 0 for these data"),
        (other, {"decode_last": True}, "decode_last=True must be False for these data; set --model.no-decode-last$"),
        (autoencoded, {"vocab_size": 16}, "decode_last=False must be True for these data; set --model.decode-last$"),
        (pairs, {"pair_values": 5}, r"vocab_size=63 must be a multiple of pair_values \+ 1 = 6"),
        (pairs, {"pair_values": 6, "tie_embeddings": False}, "tie_embeddings=False must be True with pair_values"),
        (other, {"decode_last": True, "d_model": 2}, "d_model=2 must be at least 4 with decode_last"),
    ):
        data = RecallDataConfig(train=(examples,), valid=(examples,))
        with pytest.raises(ValueError, match=f"^LanguageModelConfig.{message}"):
            RunConfig(model=LanguageModelConfig(**{**sizes, **fields}), data=data)
    with pytest.raises(ValueError, match=r"^RecallDataConfig.valid=.* must have tasks for one kind of model"):
        RecallDataConfig(train=(pairs,), valid=(pairs, other))
