"""Compositional MQAR: a value is bound to a pair of keys, which neither key alone determines.

A task of the released code (HazyResearch/zoology, `data/compositional_mqar.py`), not of the papers. An example has g
first keys and g second keys, and a distinct value for each of the `n_pairs = g^2` pairs of them. The context holds the
pairs in any order, `a x v`. After it each pair is queried once, in slots of three positions that follow MQAR's gap law
(`jaxzoo.tasks.mqar`); the target at the second key is the value. With first keys A and B, second keys X and Y:

    B X 1 A X 8 B Y 9 A Y 2 A X 0 B Y 0 A Y 0 B X 0
    . . . . . . . . . . . . . 8 . . 9 . . 2 . . 1 .

Reading only one key of a query gives an accuracy of `1 / g`, guessing among the values of the context `1 / g^2`, among
all values `1 / n_values`. It is recall of 2-grams (`jaxzoo.tasks.ngram_recall`) whose grams are all pairs of g first
and g second tokens.

| | release | here |
| --- | --- | --- |
| vocabulary | larger than the length | large enough for the values of an example |
| length | even | any |
| pairs | 1, 4, 9, .. | 4, 9, ..: with one pair each key alone determines the value |
| train and test | drawn from two seeds | disjoint |

No example is in both splits: the number of inversions in the order of the values of the context, plus their sum, is odd
in test and even in train; otherwise the first two values are swapped. Any part of an example that lacks one of its
values has the same distribution as without the split, up to `1 / (n_values - n_pairs + 1)`.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxzoo.config.checked import PositiveFloat, PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.slotted_recall import NEUTRAL, SlottedRecallConfig
from jaxzoo.utils.array_typing import Array, Bool, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompositionalMQARConfig(SlottedRecallConfig):
    """Sizes and distributions of an example; defaults as released. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 8192
    """Tokens: 0 is neutral, first keys are 1 .. vocab_size // 3 - 1, second keys the next vocab_size // 3, values the
    rest."""
    length: PositiveInt = 64
    """Tokens in an example; at least 6 n_pairs."""
    n_pairs: PositiveInt = 4
    """Pairs of keys with a value, each queried once; a square, at least 4."""
    power: PositiveFloat = 0.01
    """Exponent a of the gap law a i^(a-1); 1 is uniform, smaller values make queries earlier."""
    fillers: Literal["zero", "any"] = "any"
    """Tokens of empty positions after the context: 0, or uniform over all tokens, so that two fillers may be a pair of
    the example and look like a query without a label."""
    folded = ("length", "n_pairs")

    def __post_init__(self) -> None:
        is_square = self.grid_size > 1 and self.grid_size**2 == self.n_pairs
        rule = "must be a square and at least 4: as many first keys as second ones"
        self.require("n_pairs", is_square, rule, f"take {max(self.grid_size, 2) ** 2}")
        rule = f"must be at least 6 n_pairs={6 * self.n_pairs}"
        self.require("length", self.length >= 6 * self.n_pairs, rule, "raise length or lower n_pairs")
        rule = f"must have {self.n_pairs} values in its last third, has {self.n_values}"
        self.require("vocab_size", self.n_values >= self.n_pairs, rule, f"take {3 * self.n_pairs} or more")
        rule = f"must have {self.grid_size} first keys, has {self.first_second_key - 1}"
        self.require("vocab_size", self.first_second_key > self.grid_size, rule, f"take {3 * self.n_pairs} or more")
        self.require_power("the release: 0.01")

    @property
    def legend(self) -> str:
        second = self.first_second_key
        keys = f"first keys 1..{second - 1}, second keys {second}..{self.first_value - 1}"
        return f"{keys}, values {self.first_value}..{self.vocab_size - 1}; {NEUTRAL}: empty"

    @property
    def grid_size(self) -> int:
        """Number of first keys of an example, and of second ones."""
        return math.isqrt(self.n_pairs)

    @property
    def gram_size(self) -> int:
        """Tokens of a query: two keys."""
        return 2

    @property
    def first_second_key(self) -> int:
        """Smallest second key; first keys are 1 to this minus 1."""
        return self.vocab_size // 3

    @property
    def first_value(self) -> int:
        return 2 * (self.vocab_size // 3)

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = n_pairs, and `positions[:, j]` asks for pair j of the context."""
        first_rng, second_rng, order_rng, value_rng, word_rng = jax.random.split(key, 5)
        n = self.n_pairs
        size = self.grid_size
        _, slot_words, filler_words = self.words(word_rng, 0)
        firsts = 1 + random_draws.distinct(first_rng, size, self.first_second_key - 1)
        n_seconds = self.first_value - self.first_second_key
        seconds = self.first_second_key + random_draws.distinct(second_rng, size, n_seconds)
        cells = random_draws.distinct(order_rng, n, n)
        pairs = jnp.stack([firsts[cells // size], seconds[cells % size]], axis=1)
        drawn = random_draws.distinct(value_rng, n, self.n_values)
        values = self.first_value + random_draws.steered(drawn, drawn.sum(), odd)
        context = jnp.concatenate([pairs, values[:, None]], axis=1)
        rest = self.fill(filler_words, self.fillers)
        slots = self.draw_slots(slot_words, n)
        return self.ask(context, rest, slots, pairs, values)
