"""Base of MQAR and its relatives: recall with queries in slots after the context.

The context is a sequence of grams, of one token or more, each followed by its value. After it every `slot_width`
positions are a slot; slot i (i = 1, 2, ..) has weight `a i^(a-1)`, the gap law, and the slots of the queries are drawn
one after the other without replacement. A query repeats a gram; the target at its last token is the value.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from jaxzoo.config.checked import LARGEST, PositiveFloat, PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray

NEUTRAL = 0
"""Token of empty positions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlottedRecallConfig(TaskConfig, abc.ABC):
    """Sizes of the context and of its slots. Keys are the lower half of the vocabulary except 0, values the upper
    half."""

    n_pairs: PositiveInt
    """Keys with a value in the context."""
    power: PositiveFloat = 0.1
    """Exponent a of the gap law a i^(a-1); 1 is uniform, smaller values make queries earlier."""

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "pairs": self.n_pairs}

    @property
    def gram_size(self) -> int:
        return 1

    @property
    def context_length(self) -> int:
        """Tokens before the first slot."""
        return self.n_pairs * (self.gram_size + 1)

    @property
    def first_target(self) -> int:
        return self.context_length

    @property
    def slot_width(self) -> int:
        """Distance between slots; a query begins at the first position of one."""
        return self.gram_size + 1

    @property
    def n_slots(self) -> int:
        """Number of slots, which begin at `context_length + slot_width i`."""
        return (self.length - self.context_length) // self.slot_width

    @property
    def n_keys(self) -> int:
        """Number of keys: 1 .. n_keys."""
        return self.first_value - 1

    @property
    def first_value(self) -> int:
        return self.vocab_size // 2

    @property
    def n_values(self) -> int:
        return self.vocab_size - self.first_value

    @abc.abstractmethod
    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example by `ask`."""

    def require_power(self, remedy: str) -> None:
        """Raises `ValueError` unless every slot can be drawn."""
        drawn = (self.power - 1) * math.log(self.length) < math.log(LARGEST)
        self.require("power", drawn, "must be smaller: in float32 some slots have probability 0", remedy)

    def words(self, key: PRNGKeyArray, n: int, *, rows: int = 1) -> list[UInt[Array, "size"]]:
        """Draws the random words of an example in one call: `n`, then `rows` per slot, then one per later position."""
        sizes = n, rows * self.n_slots, self.length - self.context_length
        return jnp.split(jax.random.bits(key, (sum(sizes),), jnp.uint32), np.cumsum(sizes)[:-1])

    def draw_slots(self, words: UInt[Array, "size"], n: int) -> Int[Array, "n"]:
        """Draws the slots of `n` queries from one random word per slot."""
        return random_draws.successive(words, np.arange(1.0, self.n_slots + 1) ** (self.power - 1), n)

    def fill(self, words: UInt[Array, "size"], fillers: str) -> Int[Array, "size"]:
        """Returns the tokens after the context, before queries are written: all `NEUTRAL` ("zero"), or any tokens."""
        return (
            random_draws.below(words, self.vocab_size)
            if fillers == "any"
            else jnp.full(words.shape, NEUTRAL, jnp.int32)
        )

    def ask(
        self,
        context: Int[Array, "n w"],
        rest: Int[Array, "size"],
        slots: Int[Array, "m"],
        grams: Int[Array, "m g"],
        answers: Int[Array, "m"],
    ) -> Batch:
        """Makes an example from context, later tokens, and slots, grams and answers of the queries; positions are in
        the order of the queries."""
        starts = self.slot_width * slots
        rest = rest.at[starts[:, None] + np.arange(self.gram_size)[None, :]].set(grams, unique_indices=True)
        return Batch(
            tokens=jnp.concatenate([context.reshape(-1), rest]),
            positions=self.context_length + starts + self.gram_size - 1,
            targets=answers,
        )
