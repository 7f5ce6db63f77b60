"""Examples of every task, and tests of their distributions."""

import math

import numpy as np
import pytest

from jaxzoo.tasks import mqar
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.bit_strings import MajorityConfig, ParityConfig
from jaxzoo.tasks.compositional_mqar import CompositionalMQARConfig
from jaxzoo.tasks.continuous_mqar import preset as continuous
from jaxzoo.tasks.contract import N as N, make as make
from jaxzoo.tasks.forgetting_mqar import ForgettingMQARConfig
from jaxzoo.tasks.mad import CompressionConfig, FuzzyRecallConfig, MemorizationConfig, NoisyRecallConfig
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from jaxzoo.tasks.permutations import PermutationsConfig
from jaxzoo.tasks.selective_copy import SelectiveCopyConfig
from jaxzoo.tasks.text_recall import NeedleConfig, PhoneBookConfig, VariableTrackingConfig

SMALL: dict[str, TaskConfig] = {
    "mqar": mqar.paper(8, 2, vocab_size=9),
    "mqar-one-pair": mqar.paper(8, 1, vocab_size=9),
    "mqar-literal": mqar.literal(10, 2, vocab_size=13, fillers="random"),
    "mqar-release": mqar.release(10, 2, vocab_size=11, fillers="any"),
    "mqar-passes": mqar.preset(12, 2, vocab_size=13, n_passes=2),
    "forgetting": ForgettingMQARConfig(vocab_size=11, length=10, n_pairs=2, n_updates=1, fillers="zero", power=1.0),
    "compositional": CompositionalMQARConfig(vocab_size=10, length=24, n_pairs=4, fillers="zero"),
    "ar": NGramRecallConfig(vocab_size=12, length=5, n_gram=1, n_pairs=2, n_queries=1),
    "mqnar": NGramRecallConfig(vocab_size=12, length=14, n_pairs=2, n_unmatched=1, n_letters=2),
    "copy": SelectiveCopyConfig(vocab_size=7, length=7, n_signals=3, n_noise=2),
    "copy-repeats": SelectiveCopyConfig(vocab_size=7, length=7, n_signals=3, n_noise=2, repeats="copied"),
    "copy-once": SelectiveCopyConfig(vocab_size=7, length=7, n_signals=3, n_noise=2, repeats="once"),
    "parity": ParityConfig(length=8),
    "parity-cumulative": ParityConfig(length=7, cumulative=True),
    "permutations": PermutationsConfig(length=5),
    "permutations-swaps": PermutationsConfig(length=6, n_objects=4, vocab_size=24, moves="swaps"),
    "mad-noisy": NoisyRecallConfig(vocab_size=6, length=6, noise_vocab_size=2, frac_noise=0.3),
    "mad-fuzzy": FuzzyRecallConfig(vocab_size=7, length=8, k_motif_size=2, v_motif_size=2),
    "mad-memorization": MemorizationConfig(vocab_size=7, length=12),
    "compression": CompressionConfig(vocab_size=4, length=6),
    "compression-noise": CompressionConfig(vocab_size=5, length=5, noise_vocab_size=2, frac_noise=0.4),
    "continuous": continuous(2, n_keys=4, n_values=4),
    "continuous-passes": continuous(2, 2, n_keys=3, n_values=3),
    "phone-book": PhoneBookConfig(length=160),
    "needle": NeedleConfig(length=480),
    "needles": NeedleConfig(length=1100, num_needle_k=4, num_needle_v=2, num_needle_q=2),
    "variables": VariableTrackingConfig(length=640, num_chains=2, num_hops=2),
    "majority": MajorityConfig(length=8),
    "majority-cumulative": MajorityConfig(length=9, cumulative=True),
}
"""Every task at sizes of which so few examples exist that a batch holds a good part of them."""


def parametrize_small(*words: str) -> pytest.MarkDecorator:
    """The configs of `SMALL` whose names begin with one of these words; by default all of them."""
    names = [name for name in SMALL if not words or name.startswith(words)]
    return pytest.mark.parametrize("config", [SMALL[name] for name in names], ids=names)


def assert_law(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square: the statistic has mean k - 1 and variance 2 (k - 1); six deviations are beyond chance."""
    expected = probabilities / probabilities.sum() * counts.sum()
    assert expected.min() > 5
    statistic, dof = ((counts - expected) ** 2 / expected).sum(), counts.size - 1
    assert statistic < dof + 6 * math.sqrt(2 * dof)


def assert_same_law(counts: np.ndarray, others: np.ndarray) -> None:
    """Chi-square test of two samples of one size."""
    statistic, dof = ((counts - others) ** 2 / (counts + others)).sum(), counts.size - 1
    assert statistic < dof + 6 * math.sqrt(2 * dof)


def assert_refused(config: type[TaskConfig], cases: list[tuple[dict, str]]) -> None:
    """Asserts that each set of fields is refused with a matching message."""
    for fields, message in cases:
        with pytest.raises(ValueError, match=f"^{config.__name__}.{message}"):
            config(**fields)
