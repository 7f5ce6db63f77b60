"""Zoology, H.23 and H.24, and Based, F.9 to F.13: the index problem. Kills: an answer that is not in the message."""

import itertools
import math

import numpy as np
import pytest

from experiments.theory.index_problem import alice, attention, bob, needed_bits, retention, taylor

pytestmark = pytest.mark.full


def errors(agents, strings, precision=None):
    """Share of wrong answers over all indices, and the messages."""
    messages = alice(agents, strings, precision=precision)
    wrong = [np.mean(bob(agents, messages, np.full(len(strings), i)) != strings[:, i]) for i in range(strings.shape[1])]
    return np.mean(wrong), messages


def every_string(n):
    return np.array(list(itertools.product((0, 1), repeat=n)))


def some_strings(n, count=4):
    return np.random.default_rng(n).integers(0, 2, (count, n))


def test_one_bit_per_entry_of_ret_net_is_enough_and_none_can_be_saved():
    """Kills: two bits in one entry, a state with more than the string, strings with one message, a wrong count."""
    strings = every_string(9)
    error, messages = errors(retention(3), strings, precision=1)
    assert error == 0
    assert messages.shape == (512, 4 * 9)  # d^2 entries for d = 2 r, one bit each
    assert len(np.unique(messages, axis=0)) == 512
    used = np.ptp(messages, axis=0) > 0
    assert used.sum() == 9 == needed_bits(9, 0.0)


def test_decay_keeps_the_signs():
    """Kills: an old pair that is lost, a query that changes the state first, d^2 = 4 n numbers that are not enough."""
    error, messages = errors(retention(16, gamma=0.9), some_strings(256))
    assert error == 0
    assert messages.shape[1] == 32**2 == 4 * 256


def test_too_few_entries_err_as_the_bound_says():
    """Kills: a bound that a protocol beats, or a string longer than the state that is recalled nevertheless."""
    strings = every_string(8)
    error, messages = errors(retention(2, n=8), strings, precision=2)
    assert error == 0.25  # two bits share an entry; if they differ, one is wrong
    _, counts = np.unique(messages, axis=0, return_counts=True)
    entropy = -np.sum(counts / 256 * np.log2(counts / 256))
    assert needed_bits(8, error) <= entropy < 8
    assert len(counts) == 3**4
    assert needed_bits(8, 1 / 3) == pytest.approx(8 * (1 - (math.log2(3) - 2 / 3)))


@pytest.mark.parametrize("r", [5])
def test_taylor_attention(r):
    """Kills: weights of other keys that outvote the match, a message without the sums of values."""
    agents, strings = taylor(r), some_strings(r * r)
    error, messages = errors(agents, strings)
    assert error == 0
    assert errors(agents, strings, precision=8)[0] == 0
    assert messages.shape[1] * 32 >= needed_bits(r * r, error)


def test_attention_from_token_ids():
    """Kills: a cache of another capacity, a convolution without the last value, token ids of bits mixed up."""
    error, messages = errors(attention(12), some_strings(12))
    assert error == 0
    assert messages.shape[1] == 4 * 16 * 12 + 4 * 16  # a cache of 2 n + 1 tokens, and the convolution's two, at d = 16
