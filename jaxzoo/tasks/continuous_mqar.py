"""Continuous MQAR: multi-query associative recall whose pairs take one position, key next to value.

From the released code (HazyResearch/zoology, `data/stacked_mqar.py` and `experiments/011126`), not from the
papers. An example shows `n_pairs` pairs of different keys and different values, `n_passes` times, in a new order each
time, and then queries each key once, in another order. Two pairs in one pass, `key=value` or `key?`:

    inputs  3=1 0=7 0? 3?      targets  . . 7 1

In the release the input of a position is a vector: the concatenated frozen embeddings of key and value, with zeros for
the value in a query; the answer is the value whose frozen embedding has the largest product with the output. Here an
example holds integers, as in every task: token `key (n_values + 1)` queries a key, token `key (n_values + 1) + 1 +
value` is a pair, and a target is a value, 0 .. n_values - 1. The model makes the vectors
(`LanguageModelConfig.pair_values`, `jaxzoo.layers.pair_embedding`). No convolution is needed to bring a key to its
value: one layer of a mixer can solve the task.

| release | here |
| --- | --- |
| num_kv_pairs, num_passes | `n_pairs`, `n_passes`; the length is (n_passes + 1) n_pairs |
| vocab_size 8192: the first half are keys, the rest values | `n_keys` and `n_values`, 4096 each |
| one pair or more | two or more: with one pair the answer needs no key |
| per_sequence_mapping | absent: see below |
| train and test are drawn from two seeds | disjoint |

`per_sequence_mapping=False` is documented as a mapping from keys to values that persists across sequences. But only the
permutation that assigns the drawn values to the drawn keys by index persists; keys and values are drawn in a new order
for every example. So both settings have the same distribution, and no key keeps its value. Facts that all examples
share are MAD's memorization (`jaxzoo.tasks.mad`).

No example is in both splits: the number of inversions in the order of the keys of the first pass, plus the sum of its
keys and values, is odd in test and even in train; otherwise the first two keys are swapped. Any part of an example that
lacks a pair has the same distribution as without the split, up to O(1 / n_keys).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContinuousMQARConfig(TaskConfig):
    """Sizes of an example; defaults as released. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 4096 * 4097
    """Number of token ids, n_keys (n_values + 1); embedding tables are smaller."""
    length: PositiveInt = 16
    """Positions of an example, (n_passes + 1) n_pairs, each a pair or a query."""
    n_passes: PositiveInt = 1
    """How many times the pairs are shown."""
    n_values: PositiveInt = 4096
    """Values, as many as there are answers."""
    folded = ("length", "n_passes")

    @property
    def slices(self) -> Mapping[str, int]:
        return {"pairs": self.n_pairs, "passes": self.n_passes}

    def __post_init__(self) -> None:
        parts = self.n_passes + 1
        rule = f"must be a multiple of {parts}: n_passes={self.n_passes} times the pairs, and the queries"
        self.require("length", self.length % parts == 0, rule)
        self.require("length", self.n_pairs >= 2, f"must be at least {2 * parts}, for two pairs")
        rule = f"must be a multiple of n_values + 1 = {self.n_values + 1}, for each key"
        self.require("vocab_size", self.vocab_size % (self.n_values + 1) == 0, rule)
        rule = f"must be at least {self.n_pairs * (self.n_values + 1)}, for {self.n_pairs} different keys"
        self.require("vocab_size", self.n_keys >= self.n_pairs, rule)
        rule = f"must be at least {self.n_pairs}, for the different values of an example"
        self.require("n_values", self.n_values >= self.n_pairs, rule)

    @property
    def n_pairs(self) -> int:
        """Pairs of an example, each asked for once."""
        return self.length // (self.n_passes + 1)

    @property
    def n_keys(self) -> int:
        """Keys: 0 .. n_keys - 1."""
        return self.vocab_size // (self.n_values + 1)

    @property
    def legend(self) -> str:
        tokens = f"token = key * {self.n_values + 1}, + 1 + value in a pair"
        return f"keys 0..{self.n_keys - 1}, values 0..{self.n_values - 1}; {tokens}"

    @property
    def model_fields(self) -> Mapping[str, Any]:
        return {"pair_values": self.n_values}

    @property
    def first_target(self) -> int:
        return self.n_passes * self.n_pairs

    def as_text(self, tokens: Int[np.ndarray, "t"], targets: Int[np.ndarray, "t"]) -> str:
        """One line per pass, and one of the queries with their answers."""
        answers = ["" if target == UNLABELLED else f" {target}" for target in targets]
        words = [pair_text(token, self.n_values) + answer for token, answer in zip(tokens, answers, strict=True)]
        n = self.n_pairs
        return "\n".join("  ".join(words[start : start + n]) for start in range(0, len(words), n))

    def copied(self, tokens: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
        """The value of each pair; -1 for a query."""
        return tokens % (self.n_values + 1) - 1

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; the queries are its last m = n_pairs positions."""
        key_rng, value_rng, order_rng = jax.random.split(key, 3)
        n = self.n_pairs
        passes = self.n_passes
        keys = random_draws.distinct(key_rng, n, self.n_keys)
        values = random_draws.distinct(value_rng, n, self.n_values)
        keys = random_draws.steered(keys, keys.sum() + values.sum(), odd)
        # The first pass is in the order of the draw; every later pass has its own order.
        orders = jnp.argsort(jax.random.bits(order_rng, (passes, n), jnp.uint32), axis=1)
        asks = keys * (self.n_values + 1)
        pairs = asks + 1 + values
        *shown, last = orders
        tokens = jnp.concatenate([pairs, *(pairs[order] for order in shown), asks[last]])
        return Batch(tokens=tokens, positions=passes * n + jnp.arange(n, dtype=jnp.int32), targets=values[last])


def preset(n_pairs: int = 8, n_passes: int = 1, *, n_keys: int = 4096, n_values: int = 4096) -> ContinuousMQARConfig:
    """Returns the task by its number of pairs, with the length and the token ids that it needs."""
    length = (n_passes + 1) * n_pairs
    vocab_size = n_keys * (n_values + 1)
    return ContinuousMQARConfig(vocab_size=vocab_size, length=length, n_passes=n_passes, n_values=n_values)


def pair_text(token: int, n_values: int) -> str:
    """Formats `key=value`, or `key?` for a query."""
    key, value = divmod(int(token), n_values + 1)
    return f"{key}={value - 1}" if value else f"{key}?"
