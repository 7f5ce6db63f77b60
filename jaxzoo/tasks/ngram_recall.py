"""Associative recall of N-grams: CAT's AR, NAR, MQAR and MQNAR as one task.

CAT, Definitions 2, 3 and 5. The context is `G1 v1 G2 v2 ..`: grams of `n_gram` tokens, each followed by its value.
It is followed by queries, which are grams; the target at the last token of a query is the value of the same gram in the
context, or the token `NO_MATCH` if the context lacks it. The grams of one example are made of few tokens, as in the
paper's Table 1 (`a b`, `b a`, `a a`): neither their first nor their last token identifies them.

| preset | queries | `n_gram` | paper |
| --- | --- | --- | --- |
| `ar` | one, at the end | 1 | Definition 2 |
| `nar` | one, at the end | N | Definition 3 |
| `mqnar` | all grams of the context, and some without a match | N | Definition 5 |

Our choices. The grams of a context are distinct, so that first and last match are the same; tokens of grams are never
values, and at least one other token separates two queries, so that no gram arises across a border. The slots of the
queries follow MQAR's gap law (`jaxzoo.tasks.mqar`): slot i = 1, 2, .. has weight `power i^(power - 1)` and is one token
wider than a gram. The paper uses Zoology's sizes, and does not print how its grams are made. Definition 5
has targets at every position; here, as in MQAR, the loss counts queries only.

No example is in both splits: the sum of an example's values is odd in test and even in train; otherwise the first value
is replaced by a neighbor. Any part of an example without all of its values has the same distribution as without the
split.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import NonNegativeInt, PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.slotted_recall import NEUTRAL, SlottedRecallConfig
from jaxzoo.utils.array_typing import Array, Bool, PRNGKeyArray

NO_MATCH = 1
FIRST_KEY = 2
"""Smallest token of a gram."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NGramRecallConfig(SlottedRecallConfig):
    """Sizes and distributions of an example. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 8192
    """Tokens: 0 is neutral, 1 says that there is no match, grams are of 2 .. vocab_size // 2 - 1, values the rest; a
    multiple of 4."""
    length: PositiveInt = 64
    """Tokens in an example."""
    n_gram: PositiveInt = 2
    """Tokens of a gram."""
    n_pairs: PositiveInt = 8
    """Grams with a value in the context; at least 2."""
    n_queries: NonNegativeInt = 0
    """Grams of the context that are queried; 0: all."""
    n_unmatched: NonNegativeInt = 0
    """Queries whose gram is not in the context."""
    n_letters: NonNegativeInt = 0
    """Number of different tokens in the grams of one example; 0: the fewest that give twice as many grams as needed."""
    fillers: Literal["zero", "random"] = "zero"
    """Tokens of empty positions after the context: 0, or uniform over all values."""

    def __post_init__(self) -> None:
        self.require("n_pairs", self.n_pairs > 1, "must be at least 2: one value alone would tell train from test")
        self.require("n_queries", self.n_queries <= self.n_pairs, f"must be at most n_pairs={self.n_pairs}")
        self.require("vocab_size", self.vocab_size % 4 == 0, "must be a multiple of 4", "so that values come in pairs")
        least = self.context_length + self.slot_width * self.asked - 1
        rule = f"must be at least {least}, for {self.n_pairs} pairs and {self.asked} queries of {self.n_gram}-grams"
        self.require("length", self.length >= least, rule)
        rule = f"must be at least {2 * (FIRST_KEY + self.letters)}: the grams of an example have {self.letters} tokens"
        self.require("vocab_size", self.first_value - FIRST_KEY >= self.letters, rule)
        n_grams = self.n_pairs + self.n_unmatched
        rule = f"must make {n_grams} different {self.n_gram}-grams, makes {self.letters}^{self.n_gram}"
        self.require("n_letters", self.letters**self.n_gram >= n_grams, rule, "raise it, or leave it 0")
        self.require("n_letters", self.letters**self.n_gram < 2**31, "must make fewer than 2^31 grams")
        self.require_power("the papers have 0.1")

    @property
    def legend(self) -> str:
        grams = "keys" if self.n_gram == 1 else f"{self.n_gram}-grams of"
        values = f"values {self.first_value}..{self.vocab_size - 1}"
        no_match = f", {NO_MATCH}: no match" if self.n_unmatched else ""
        return f"{grams} {FIRST_KEY}..{self.first_value - 1}, {values}; {NEUTRAL}: empty{no_match}"

    @property
    def asked(self) -> int:
        """Number of queries, including those without a match."""
        return (self.n_queries or self.n_pairs) + self.n_unmatched

    @property
    def letters(self) -> int:
        """`n_letters`, or its default."""
        wanted = 2 * (self.n_pairs + self.n_unmatched)
        return self.n_letters or math.ceil(wanted ** (1 / self.n_gram) - 1e-9)

    @property
    def gram_size(self) -> int:
        return self.n_gram

    @property
    def n_slots(self) -> int:
        """Number of slots for queries."""
        return (self.length - self.context_length + 1) // self.slot_width

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m queries, those with a match first."""
        letter_rng, gram_rng, asked_rng, word_rng = jax.random.split(key, 4)
        n = self.n_pairs
        value_words, slot_words, filler_words = self.words(word_rng, n)
        letters = FIRST_KEY + random_draws.distinct(letter_rng, self.letters, self.first_value - FIRST_KEY)
        codes = random_draws.distinct(gram_rng, n + self.n_unmatched, self.letters**self.n_gram)
        places = self.letters ** np.arange(self.n_gram, dtype=np.int32)
        grams = letters[codes[:, None] // places[None, :] % self.letters]

        values = self.first_value + random_draws.first_steered(random_draws.below(value_words, self.n_values), odd)
        context = jnp.concatenate([grams[:n], values[:, None]], axis=1)

        matched = random_draws.distinct(asked_rng, self.asked - self.n_unmatched, n)
        asked = jnp.concatenate([matched, n + jnp.arange(self.n_unmatched, dtype=jnp.int32)])
        rest = self.fill(filler_words, self.fillers)
        if self.fillers == "random":
            rest = self.first_value + random_draws.below(filler_words, self.n_values)
        answers = jnp.concatenate([values, jnp.full((self.n_unmatched,), NO_MATCH, jnp.int32)])
        return self.ask(context, rest, self.draw_slots(slot_words, self.asked), grams[asked], answers[asked])


def ar(length: int = 65, *, vocab_size: int = 8192) -> NGramRecallConfig:
    """Associative recall (CAT, Definition 2): as many pairs as fit; the last token asks for one of them. `length` is
    odd; `vocab_size` is a multiple of 4, its lower half are keys, its upper half values."""
    return nar(length, 1, vocab_size=vocab_size)


def nar(length: int = 65, n_gram: int = 2, *, vocab_size: int = 8192) -> NGramRecallConfig:
    """Associative recall of N-grams (CAT, Definition 3): as many pairs as fit; the last `n_gram` tokens ask for one.
    `length` is `n_gram` more than a multiple of `n_gram + 1`; `vocab_size` is a multiple of 4, its lower half makes
    grams, its upper half values. Raises `ValueError` for another length."""
    n_pairs, rest = divmod(length - n_gram, n_gram + 1)
    if rest:
        rule = f"must be {n_gram} more than a multiple of {n_gram + 1}: pairs and the query fill it"
        raise ValueError(f"nar: length={length} {rule}; take {length - rest}")
    return NGramRecallConfig(vocab_size=vocab_size, length=length, n_gram=n_gram, n_pairs=n_pairs, n_queries=1)


def mqnar(length: int = 128, n_pairs: int = 8, *, n_gram: int = 2, vocab_size: int = 8192) -> NGramRecallConfig:
    """Multi-query N-gram recall (CAT, Definition 5): queries are all grams of the context, and a quarter as many
    without a match. There are at least 2 pairs; `vocab_size` is a multiple of 4, its lower half makes grams, its upper
    half values."""
    return NGramRecallConfig(
        vocab_size=vocab_size, length=length, n_gram=n_gram, n_pairs=n_pairs, n_unmatched=max(n_pairs // 4, 1)
    )
