"""Selective copying: signal tokens among noise, to be repeated in order after a separator.

CAT, Definition 4 (after Jing et al. 2019 and Gu and Dao 2023, who call it selective copying too). The prompt has
`prompt_length` tokens, `n_signals` of them signals at random positions, the others noise; then the separator, and then
the signals without the last. The target at the separator is the first signal to copy, and at each copied signal the
next one: the model copies autoregressively, with teacher forcing.

"Unique" copying can be read in three ways, which agree where no signal repeats (the case of Theorem 3):

| `repeats` | signals in the prompt | copied |
| --- | --- | --- |
| none | all different | all |
| copied | drawn independently | all |
| once | drawn independently | each at its first occurrence |

The paper prints no sizes; the preset `paper` has our own: 64 signal and 64 noise tokens, 16 signals in 64 tokens.

No example is in both splits. With different signals, the number of inversions in their order, plus the sum of the
signals, is odd in test and even in train; otherwise the first two signals are swapped. With repeats, the sum of the
signals decides, and the first one is replaced by its neighbor. Any part of the prompt without all of its signals has
the same distribution as without the split.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.utils.array_typing import Array, Bool, PRNGKeyArray

SEPARATOR = 0
"""Token after the prompt."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopyConfig(TaskConfig):
    """Sizes and tokens of an example. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 129
    """Tokens: 0 separates, 1 .. n_noise are noise, the rest signals, an even number of them."""
    length: PositiveInt = 80
    """Tokens in an example: prompt, separator, and the signals without the last."""
    n_signals: PositiveInt = 16
    """Signals in the prompt; at least 2."""
    n_noise: PositiveInt = 64
    """Noise tokens of the vocabulary."""
    repeats: Literal["none", "copied", "once"] = "none"
    """Whether a signal may occur in the prompt more than once, and what is copied then."""

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "signals": self.n_signals}

    def __post_init__(self) -> None:
        self.require("n_signals", self.n_signals > 1, "must be at least 2: one alone would tell train from test")
        self.require("length", self.prompt_length >= self.n_signals, f"must be at least {2 * self.n_signals}")
        even = self.n_signal_tokens > 1 and self.n_signal_tokens % 2 == 0
        rule = f"must leave an even number of signals next to the separator and n_noise={self.n_noise}"
        self.require("vocab_size", even, rule, f"take {self.first_signal + max(self.n_signal_tokens + 1, 2) // 2 * 2}")
        enough = self.repeats != "none" or self.n_signal_tokens >= self.n_signals
        rule = f"must be at most {self.n_signal_tokens}, the signals of the vocabulary"
        self.require("n_signals", enough, rule, "raise vocab_size, or set repeats='copied'")

    @property
    def legend(self) -> str:
        signals = f"signals {self.first_signal}..{self.vocab_size - 1}"
        return f"noise 1..{self.n_noise}, {signals}; {SEPARATOR}: separator"

    @property
    def first_signal(self) -> int:
        return 1 + self.n_noise

    @property
    def n_signal_tokens(self) -> int:
        return self.vocab_size - self.first_signal

    @property
    def prompt_length(self) -> int:
        return self.length - self.n_signals

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = n_signals, in order. If fewer are copied, the rest are separators without a label."""
        signal_rng, place_rng, noise_rng = jax.random.split(key, 3)
        if self.repeats == "none":
            drawn = random_draws.distinct(signal_rng, self.n_signals, self.n_signal_tokens)
            signals = self.first_signal + random_draws.steered(drawn, drawn.sum(), odd)
        else:
            words = jax.random.bits(signal_rng, (self.n_signals,), jnp.uint32)
            signals = self.first_signal + random_draws.first_steered(
                random_draws.below(words, self.n_signal_tokens), odd
            )
        noise = jax.random.bits(noise_rng, (self.prompt_length,), jnp.uint32)
        prompt = 1 + random_draws.below(noise, self.n_noise)
        places = jnp.sort(random_draws.distinct(place_rng, self.n_signals, self.prompt_length))
        prompt = prompt.at[places].set(signals, unique_indices=True)
        copied = signals
        targets = signals
        if self.repeats == "once":
            first = ~random_draws.repeats(signals)
            order = jnp.argsort(~first, stable=True)
            kept = first[order]
            copied = jnp.where(kept, signals[order], SEPARATOR)
            targets = jnp.where(kept, signals[order], UNLABELLED)
        tokens = jnp.concatenate([prompt, jnp.full((1,), SEPARATOR, jnp.int32), copied[:-1]])
        return Batch(tokens=tokens, positions=self.prompt_length + jnp.arange(self.n_signals), targets=targets)


def paper(
    prompt_length: int = 64, n_signals: int = 16, *, repeats: Literal["none", "copied", "once"] = "none"
) -> SelectiveCopyConfig:
    """Selective copying with our own sizes (module docstring): `prompt_length + n_signals` tokens."""
    return SelectiveCopyConfig(length=prompt_length + n_signals, n_signals=n_signals, repeats=repeats)
