"""Parity and majority. Kills: a wrong answer or split."""

import itertools
import math

import numpy as np
import pytest

from jaxzoo.tasks.bit_strings import END, MajorityConfig, ParityConfig
from tests.tasks.examples import N, assert_refused, make, parametrize_small

parametrize_tasks = pytest.mark.parametrize("task", [ParityConfig, MajorityConfig])


def answer(task, bits):
    """Answer of a task, in one line per task."""
    return sum(bits) % 2 if task is ParityConfig else int(sum(bits) > len(bits) / 2)


def is_test(bits):
    """The split by its rule: an odd number of places `1 1`."""
    return sum(a and b for a, b in itertools.pairwise(bits)) % 2 == 1


@parametrize_small("parity", "majority")
def test_layout_of_every_example(config):
    """Kills: an answer for the string without its last bit or with `END`, a tie that counts as a majority, a prefix
    that is one bit off, `END` where every bit is asked for."""
    for split in ("train", "test"):
        tokens, positions, targets = make(config, split=split)
        asked = range(config.length) if config.cumulative else [config.length - 1]
        assert (positions == np.array(asked)).all()
        for example, answers in zip(tokens[:200].tolist(), targets[:200].tolist(), strict=True):
            bits = example if config.cumulative else example[:-1]
            assert config.cumulative or example[-1] == END
            assert set(bits) <= {0, 1}
            assert is_test(bits) == (split == "test")
            stops = range(1, len(bits) + 1) if config.cumulative else [len(bits)]
            assert answers == [answer(type(config), bits[:stop]) for stop in stops]


@pytest.mark.full
@parametrize_tasks
def test_chance_is_what_the_docstring_says(task):
    """Kills: a share of ones, or an advantage of those who read half of the string, other than the stated."""
    tokens, _, targets = make(task(length=1024), 2000)
    even = make(task(length=17), 2000)[2].mean()
    half = [answer(task, bits) for bits in tokens[:, :511].tolist()]
    of_half = (half == targets[:, 0]).mean()
    tie = math.comb(16, 8) / 2**17 if task is MajorityConfig else 0
    assert abs(targets.mean() - 0.5) < 5 * math.sqrt(0.25 / 2000)
    assert abs(even - (0.5 - tie)) < 5 * math.sqrt(0.25 / 2000)
    assert abs(of_half - (0.75 if task is MajorityConfig else 0.5)) < 5 * math.sqrt(0.25 / 2000)


@pytest.mark.parametrize("n_bits", [pytest.param(4, marks=pytest.mark.full), 7])
def test_each_split_is_uniform_over_its_strings(n_bits):
    """Kills: a string that is drawn too often or in both splits, a steered draw that spares the strings of zeros, a
    count of test strings other than the stated."""
    strings = list(itertools.product((0, 1), repeat=n_bits))
    for split in ("train", "test"):
        own = [string for string in strings if is_test(string) == (split == "test")]
        stated = 2 ** (n_bits - 1) - 2 ** (n_bits - n_bits // 2 - 1)
        assert len(own) == (stated if split == "test" else 2**n_bits - stated)
        tokens, _, _ = make(ParityConfig(length=n_bits + 1), N, 0, split)
        codes = tokens[:, :n_bits] @ (1 << np.arange(n_bits))
        counts = np.bincount(codes, minlength=2**n_bits)
        kept = np.array([sum(bit << i for i, bit in enumerate(string)) for string in own])
        expected = N / len(own)
        assert counts[kept].sum() == N
        assert ((counts[kept] - expected) ** 2 / expected).sum() < len(own) + 6 * math.sqrt(2 * len(own))


def test_config_errors():
    """Kills: a task that has no examples, and a message that names another class."""
    cases = [
        ({"vocab_size": 4}, "vocab_size=4 must be 3: the bits 0 and 1, and the token that asks"),
        ({"length": 4}, "length=4 must hold at least 4 bits: .*; take 5 or more"),
        ({"length": 3, "cumulative": True}, "length=3 must hold at least 4 bits: .*; take 4 or more"),
        ({"cumulative": 1}, "cumulative=1 must be True or False"),
    ]
    assert_refused(ParityConfig, cases)
    assert_refused(MajorityConfig, cases)
