"""Forgetting MQAR: some keys of the context are bound again, and the last value counts.

From the released code (HazyResearch/zoology, `data/forgetting_mqar.py`), not from the papers. The context is as in
MQAR (`jaxzoo.tasks.mqar`), `k1 v1 k2 v2 ..`; its `n_pairs` pairs are followed by `n_updates` more: keys of the
context, drawn without replacement and in any order, each with a new value. After them every key is queried once, in
slots of two positions that follow MQAR's gap law; the target at a key is its last value.
With 4 pairs and 2 updates:

    A 5 B 3 C 7 D 2 C 1 A 9 B 0 D 0 A 0 C 0
    . . . . . . . . . . . . 3 . 2 . 9 . 1 .

A state of fixed size must replace the old value by the new one; a sum, as in plain linear
attention, returns both. Ignoring the updates gives an accuracy of `1 - n_updates / n_pairs`, guessing among
the values of the context about `1 / (n_pairs + n_updates)`, among all values `1 / n_values`.

| | release | here |
| --- | --- | --- |
| a new value is not | the value of pair j, for update j; so it may be the old one | the old value of its key |
| pairs | at least 1 | at least 2: the split needs two keys |
| train and test | drawn from two seeds | disjoint |

No example is in both splits: the number of inversions in the order of the keys, plus the sum of all keys and of all
values in the context, is odd in test and even in train; otherwise the first two keys are swapped wherever they occur.
Any part of an example that lacks one of its keys or values has the same distribution as without the split, up to
O(n_pairs / vocab_size).
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from jaxzoo.config.checked import PositiveFloat, PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.slotted_recall import NEUTRAL, SlottedRecallConfig
from jaxzoo.utils.array_typing import Array, Bool, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgettingMQARConfig(SlottedRecallConfig):
    """Sizes and distributions of an example; defaults as released. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 8192
    """Tokens: 0 is neutral, keys are 1 .. vocab_size // 2 - 1, values the rest."""
    length: PositiveInt = 64
    """Tokens in an example; even, at least 4 n_pairs + 2 n_updates, below vocab_size."""
    n_pairs: PositiveInt = 8
    """Keys of an example, each queried once; at least 2. Their first values are all different."""
    n_updates: PositiveInt = 4
    """Keys that are bound again; at most n_pairs. 0: MQAR."""
    power: PositiveFloat = 0.01
    """Exponent a of the gap law a i^(a-1); 1 is uniform, smaller values make queries earlier."""
    fillers: Literal["zero", "any"] = "any"
    """Tokens of empty positions after the context: 0, or uniform over all tokens, so that a filler may equal a key and
    look like a query without a label."""
    folded = ("length", "n_pairs", "n_updates")

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "pairs": self.n_pairs, "updates": self.n_updates}

    def __post_init__(self) -> None:
        self.require("n_pairs", self.n_pairs > 1, "must be at least 2: one key alone would tell train from test")
        self.require("n_updates", self.n_updates <= self.n_pairs, f"must be at most n_pairs={self.n_pairs}")
        self.require("length", self.length % 2 == 0, "must be even", "add or drop one token")
        least = self.context_length + 2 * self.n_pairs
        rule = f"must be at least {least}: {self.n_pairs} pairs, {self.n_updates} updates and {self.n_pairs} queries"
        self.require("length", self.length >= least, rule, "raise length, or lower n_pairs or n_updates")
        rule = f"must exceed length={self.length}"
        self.require("vocab_size", self.vocab_size > self.length, rule, "raise vocab_size or lower length")
        self.require_power("the release: 0.01")

    @property
    def legend(self) -> str:
        values = f"values {self.first_value}..{self.vocab_size - 1}"
        again = f"keys are bound again from position {2 * self.n_pairs} on"
        return f"keys 1..{self.n_keys}, {values}; {NEUTRAL}: empty; {again}"

    @property
    def context_length(self) -> int:
        """Tokens of all pairs and updates, before the first query."""
        return 2 * (self.n_pairs + self.n_updates)

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = n_pairs, and `positions[:, j]` asks for pair j of the context."""
        key_rng, value_rng, again_rng, word_rng = jax.random.split(key, 4)
        n = self.n_pairs
        m = self.n_updates
        new_words, slot_words, filler_words = self.words(word_rng, m)
        keys = 1 + random_draws.distinct(key_rng, n, self.n_keys)
        old = random_draws.distinct(value_rng, n, self.n_values)
        again = random_draws.distinct(again_rng, m, n)
        new = random_draws.below(new_words, self.n_values - 1)
        new = jnp.where(new >= old[again], new + 1, new)
        old = self.first_value + old
        new = self.first_value + new

        keys = random_draws.steered(keys, keys.sum() + old.sum() + new.sum(), odd)

        bound = jnp.concatenate([keys, keys[again]])
        context = jnp.stack([bound, jnp.concatenate([old, new])], axis=1)
        rest = self.fill(filler_words, self.fillers)
        slots = self.draw_slots(slot_words, n)
        return self.ask(context, rest, slots, keys[:, None], old.at[again].set(new, unique_indices=True))
