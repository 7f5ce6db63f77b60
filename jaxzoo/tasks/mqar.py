"""Multi-query associative recall (MQAR): key-value pairs, then the keys again; at each one, recall its value.

Zoology, Section 4 and Procedure 1 (Appendix E.1). The first `2 n_pairs` tokens are the context `k1 v1 k2 v2 ..`. After
it every second position is a slot; slot i (i = 1, 2, ..) has weight `a i^(a-1)`, and the slots of the repeated keys are
drawn one after the other without replacement. The target *at* a repeated key is its value, which is not inserted. The
paper's C, N, D and alpha are `vocab_size`, `length`, `n_pairs` and `power`.

Deviation from the paper: slots are as in the authors' released code (HazyResearch/zoology). Procedure 1, step 5,
draws for each key a position from `[2D..N]`, any after the context, by a power law of its distance from the key's
first occurrence: `places="anywhere"`, and the preset `literal`. Position `p` then has weight `a (p - 2 j)^(a-1)` for
the key of pair j = 0, 1, .. (first at position 2 j), and the keys choose in this order among the free positions; the
procedure does not say what happens if two keys draw the same position.

With `n_passes` the context is shown several times before the first query, as in Just Read Twice (Arora et al. 2024,
arXiv 2407.05483): a recurrent model can choose in a later pass what it missed in an earlier one. Every pass after the
first has a new order of the pairs, as in the released code's continuous MQAR; the paper's prompts repeat a text word by
word.

Deviation from both: no example is in both train and test. Call an example odd if the number of inversions in the order
of its keys, plus the sum of its keys and values (and of its slot, if it has one pair only), is odd. Test examples are
odd, train examples even; otherwise the first two keys are swapped or, with one pair only, the value is replaced by a
neighbor. No part of an example reveals its split: keys, values, slots, and pairs up to all but one have the same
distribution as without the split; exactly, with at least two pairs and values drawn independently from an even number
of tokens, else up to O(1 / vocab_size).

Two configs of the same length and number of pairs use the same random numbers: their examples with equal numbers are
similar, and in the same split.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.slotted_recall import SlottedRecallConfig
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray

Fillers = Literal["zero", "random", "any"]
Places = Literal["slots", "anywhere"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQARConfig(SlottedRecallConfig):
    """Sizes and distributions of an MQAR example. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 8192
    """Tokens: 0 is neutral, keys are 1 .. vocab_size // 2 - 1, values the rest."""
    length: PositiveInt = 64
    """Tokens in an example; even, at least 2 n_pairs (n_passes + 1), below vocab_size."""
    n_pairs: PositiveInt = 8
    """Key-value pairs in an example; each key is queried once."""
    n_passes: PositiveInt = 1
    """How many times the pairs are shown before the first query."""
    places: Places = "slots"
    """Where keys are queried. slots: at every second position after the context, by the number i of the slot
    (released code); anywhere: at any position there, by its distance i from the key's first occurrence (paper)."""
    distinct_values: bool = False
    """Draw the values of an example without replacement (released code), not independently (paper)."""
    fillers: Fillers = "zero"
    """Tokens of empty positions. zero: token 0; random: uniform over all tokens except the example's keys; any:
    uniform over all tokens, so that a filler may equal a key, look like a query without a label, and hide
    its pair."""

    def __post_init__(self) -> None:
        self.require("length", self.length % 2 == 0, "must be even", "add or drop one token")
        least = self.context_length + 2 * self.n_pairs
        rule = f"must be at least {2 * (self.n_passes + 1)} n_pairs={least}"
        self.require("length", self.length >= least, rule, "raise length or lower n_pairs")
        rule = f"must exceed length={self.length}"
        self.require("vocab_size", self.vocab_size > self.length, rule, "raise vocab_size or lower length")
        self.require_power("the papers have 0.1")

    @property
    def slices(self) -> Mapping[str, int]:
        return {**super().slices, **({"passes": self.n_passes} if self.n_passes > 1 else {})}

    @property
    def context_length(self) -> int:
        return 2 * self.n_pairs * self.n_passes

    @property
    def legend(self) -> str:
        return f"keys 1..{self.n_keys}, values {self.first_value}..{self.vocab_size - 1}; 0: empty"

    @property
    def slot_width(self) -> int:
        """Distance between positions that can hold a repeated key."""
        return 2 if self.places == "slots" else 1

    def split_key(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> PRNGKeyArray:
        """Returns the key of a split and of the sizes, so that examples of other sizes share no random numbers."""
        stream = jnp.uint32((self.length << 16 | self.n_pairs << 1) % 2**32) | odd.astype(jnp.uint32)
        key = jax.random.fold_in(key, stream)
        return key if self.n_passes == 1 else jax.random.fold_in(key, self.n_passes)

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = n_pairs, and `positions[:, j]` asks for pair j of the first pass."""
        key_rng, value_rng, word_rng, *order_rngs = jax.random.split(key, 2 + self.n_passes)
        n = self.n_pairs
        rows = 1 if self.places == "slots" else n
        value_words, slot_words, filler_words = self.words(word_rng, n, rows=rows)
        keys = 1 + random_draws.distinct(key_rng, n, self.n_keys)
        if self.distinct_values:
            values = self.first_value + random_draws.distinct(value_rng, n, self.n_values)
        else:
            values = self.first_value + random_draws.below(value_words, self.n_values)
        if self.places == "slots":
            slots = self.draw_slots(slot_words, n)
        else:  # each key chooses by the distance from its first occurrence, at position 2 j
            distances = float(self.context_length) + np.arange(self.n_slots)[None, :] - 2 * np.arange(n)[:, None]
            slots = random_draws.in_turn(slot_words.reshape(distances.shape), distances ** (self.power - 1))
        keys, values = _steer(self, keys, values, slots, odd)
        rest = self.fill(filler_words, self.fillers)
        if self.fillers == "random":
            rest = random_draws.below_except(filler_words, self.vocab_size, keys)
        pairs = jnp.stack([keys, values], axis=1)
        later = [jax.random.permutation(rng, pairs) for rng in order_rngs]
        return self.ask(jnp.concatenate([pairs, *later]), rest, slots, keys[:, None], values)


def paper(length: int, n_pairs: int, *, vocab_size: int = 8192, fillers: Fillers = "zero") -> MQARConfig:
    """Zoology's task (Appendix E.1, F.1): a = 0.1, values drawn independently, but with the released code's slots: keys
    recur at every second position, with the gap law over slots. `literal` is Procedure 1 as printed."""
    return MQARConfig(vocab_size=vocab_size, length=length, n_pairs=n_pairs, power=0.1, fillers=fillers)


def literal(length: int, n_pairs: int, *, vocab_size: int = 8192, fillers: Fillers = "zero") -> MQARConfig:
    """Zoology's Procedure 1 (Appendix E.1) as printed: `paper` with keys that recur at any position, by a law of
    distances. The module docstring lists our choices. Slower: `n_pairs length` random words per example."""
    return dataclasses.replace(paper(length, n_pairs, vocab_size=vocab_size, fillers=fillers), places="anywhere")


def release(length: int, n_pairs: int, *, vocab_size: int = 8192, fillers: Fillers = "zero") -> MQARConfig:
    """The task of the authors' released code: a = 0.01, distinct values. Its configurations for Zoology's Figure 2 use
    `fillers="zero"`, those for Based's Figures 2 and 3 `fillers="any"`."""
    config = paper(length, n_pairs, vocab_size=vocab_size, fillers=fillers)
    return dataclasses.replace(config, power=0.01, distinct_values=True)


def preset(
    length: int = 64,
    n_pairs: int = 8,
    *,
    vocab_size: int = 8192,
    fillers: Fillers = "zero",
    variant: Literal["paper", "literal", "release"] = "paper",
    n_passes: int = 1,
) -> MQARConfig:
    """Multi-query associative recall (Zoology, Section 4) in a variant: values and exponent as Zoology prints them,
    with the slots of the released code ("paper") or at any position ("literal"), or all as released. `length` is even,
    at least 2 n_pairs (n_passes + 1), and below vocab_size, whose lower half are keys."""
    chosen = {"paper": paper, "literal": literal, "release": release}[variant]
    config = chosen(length, n_pairs, vocab_size=vocab_size, fillers=fillers)
    return dataclasses.replace(config, n_passes=n_passes)


def _steer(
    config: MQARConfig,
    keys: Int[Array, "m"],
    values: Int[Array, "m"],
    slots: Int[Array, "m"],
    odd: Bool[Array, ""],
) -> tuple[Int[Array, "m"], Int[Array, "m"]]:
    """Makes the example odd or even (module docstring) by a change that preserves the distribution of its parts."""
    total = keys.sum() + values.sum()
    if config.n_pairs > 1:
        return random_draws.steered(keys, total, odd), values
    wrong = ((total + slots.sum()) % 2 == 1) != odd
    offsets = values - config.first_value
    neighbours = jnp.where((offsets ^ 1) < config.n_values, offsets ^ 1, offsets - 1)
    return keys, jnp.where(wrong, config.first_value + neighbours, values)
