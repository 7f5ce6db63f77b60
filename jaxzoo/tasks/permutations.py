"""Permutations: the word problem of the symmetric groups S_2 to S_5, a task of state tracking.

An example is a sequence of permutations of `n_objects` objects. The target at each place is the product of all
permutations so far, the arrangement of the objects after these moves:

    s_t = x_t o s_{t-1},   s_0 = identity,   (x o s)(i) = x(s(i))

A token is the number of a permutation in lexicographic order, n! tokens in all, and so is a target. With three objects,
012, 021, 102, 120, 201, 210 are the tokens 0 to 5; the moves 021 and 102 give 021 and then 102 o 021 = 120:

    inputs  1 2 2      targets  1 3 1

The products do not commute, and no circuit of fixed depth, such as a transformer or a linear recurrence with diagonal
transitions, can compute products in S_5 (Merrill et al. 2024, arXiv 2404.08819). A recurrence whose transitions
are reflections does a swap per token (Grazzi et al. 2024, arXiv 2411.12537, sec. 5.1): `moves="swaps"`, the identity
and the exchanges of two objects; `moves="all"` takes every permutation. A state of `n_objects` numbers solves the task.
A constant answer is right at about 1 / n! of the positions; the target at the first position is its own token.

No sequence is in both splits. With the moves numbered in the order of their tokens, the number of adjacent pairs of odd
moves is odd in test and even in train; sequences are drawn again until it is. As for the strings of
`jaxzoo.tasks.bit_strings`, this is almost independent of the products except for short sequences.

Deviation: the paper's sequences of several tokens per permutation are left out.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationsConfig(TaskConfig):
    """Group, moves and length of an example. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 6
    """Tokens: the permutations, n_objects!."""
    length: PositiveInt = 64
    """Tokens in an example, all moves; at least 4."""
    n_objects: PositiveInt = 3
    """Objects that are permuted, 2 to 5: the group S_2 to S_5."""
    moves: Literal["all", "swaps"] = "all"
    """Permutations that occur: all, or the identity and the exchanges of two objects."""
    folded = ("length", "n_objects", "has_swaps")

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "objects": self.n_objects}

    def __post_init__(self) -> None:
        self.require("n_objects", 2 <= self.n_objects <= 5, "must be in [2, 5]")
        size = math.factorial(self.n_objects)
        self.require("vocab_size", self.vocab_size == size, f"must be {size}: the permutations of {self.n_objects}")
        self.require("length", self.length >= 4, "must be at least 4, for test examples of more than one kind")

    @property
    def legend(self) -> str:
        last = self.vocab_size - 1
        return f"permutations 0..{last} of {self.n_objects} objects in lexicographic order; each asks for the product"

    @property
    def has_swaps(self) -> bool:
        """Whether only swaps occur."""
        return self.moves == "swaps"

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = length, in order."""
        table, swaps = _group(self.n_objects)
        tokens = jnp.asarray(swaps if self.has_swaps else np.arange(self.vocab_size, dtype=np.int32))

        def draw(key: PRNGKeyArray) -> Int[Array, "t"]:
            return random_draws.below(jax.random.bits(key, (self.length,), jnp.uint32), tokens.size)

        inputs = tokens[random_draws.until(lambda moves: random_draws.is_odd_pairs(moves) == odd, draw, key)]
        products = jnp.asarray(table)
        compose = lambda earlier, later: products[later, earlier]  # noqa: E731
        targets = jax.lax.associative_scan(compose, inputs)
        return Batch(tokens=inputs, positions=jnp.arange(self.length, dtype=jnp.int32), targets=targets)


def preset(n_objects: int = 3, length: int = 64, moves: Literal["all", "swaps"] = "all") -> PermutationsConfig:
    """Returns the task with the vocabulary of the group."""
    return PermutationsConfig(vocab_size=math.factorial(n_objects), n_objects=n_objects, length=length, moves=moves)


@functools.cache
def _group(n_objects: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the product table `table[x, s] = x o s`, int32 (n!, n!), and the tokens of the identity and the swaps."""
    permutations = np.array(list(itertools.permutations(range(n_objects))))
    products = permutations[:, permutations]  # (x, s, i): x(s(i))
    digits = n_objects ** np.arange(n_objects)[::-1]
    codes = np.zeros(n_objects**n_objects, np.int32)
    codes[permutations @ digits] = np.arange(len(permutations))
    moved = (permutations != np.arange(n_objects)).sum(1)
    return codes[products @ digits], np.flatnonzero(moved <= 2).astype(np.int32)
