"""Parity and majority: whether a bit string has an odd number of ones, or more ones than zeros.

From the released code (HazyResearch/zoology, `data/circuits.py`: `parity` and `majority`, and `cumulative_..` for
`cumulative=True`), not from the papers. An example is a string of uniform bits, the tokens 0 and 1, followed by the
token `END`, whose target is the answer for the whole string. With `cumulative` there is no `END`, and the target at
each bit is the answer for the string up to this bit.

No string is in both splits: the number of adjacent pairs of ones is odd in test and even in train; strings are drawn
again until it is, and at least three in eight are accepted. Modulo 2 this number is a quadratic form in the bits, of
rank 2 m with m = n_bits // 2, almost independent of any sum of them: the parity of a set of bits is 1 in either split
with probability 1/2, up to `1 / (2^(m + 1) - 2)`. This matters for short strings only, and these repeat in any case: of
n bits there are `2^n` strings, of which `2^(n - 1) - 2^(n - m - 1)` are test. So the splits distinguish the rule from
memorized strings only if there are far more strings than training examples; otherwise validate at a length that was not
trained on. With `cumulative` too, whole strings are disjoint: two of them may have a common prefix.

    1 1 0 1 0 0 END       with cumulative   1 1 0 1 0 0
    . . . . . . 1  parity                   1 0 0 1 1 1
    . . . . . . 0  majority                 1 1 1 1 1 0

| | release | here |
| --- | --- | --- |
| bits with `cumulative`, parity | one fewer than `input_seq_len` | `length` |
| a tie, majority | 0; with `cumulative` 1 | 0 |
| length | any | at least 4 bits |
| train and test | drawn from two seeds | disjoint |
"""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray

END = 2
"""Token after the bits, which asks for the answer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitStringConfig(TaskConfig):
    """Length and question of an example. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 3
    """Tokens: the bits 0 and 1, and `END`; 3."""
    length: PositiveInt = 64
    """Tokens in an example, `END` included; at least 4 of them bits."""
    cumulative: bool = False
    """Ask for the answer after every bit, not only after the last one."""
    folded = ("length",)

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length}

    def __post_init__(self) -> None:
        self.require("vocab_size", self.vocab_size == 3, "must be 3: the bits 0 and 1, and the token that asks")
        rule = "must hold at least 4 bits: all shorter strings of the test split have one answer"
        self.require("length", self.n_bits >= 4, rule, f"take {self.length - self.n_bits + 4} or more")

    @property
    def legend(self) -> str:
        return "bits 0 and 1" if self.cumulative else f"bits 0 and 1; {END} asks"

    @property
    def n_bits(self) -> int:
        return self.length - (not self.cumulative)

    @abc.abstractmethod
    def answers(self, bits: Int[Array, "n"]) -> Int[Array, "n"]:
        """Returns the answer for each prefix of a string, 0 or 1."""

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = 1, or with `cumulative` m = length, in order."""

        def draw(key: PRNGKeyArray) -> Int[Array, "n"]:
            words = jax.random.bits(key, (-(-self.n_bits // 32), 1), jnp.uint32)
            drawn = (words >> jnp.arange(32, dtype=jnp.uint32)[None, :]) & jnp.uint32(1)
            return drawn.reshape(-1)[: self.n_bits].astype(jnp.int32)

        bits = random_draws.until(lambda bits: random_draws.is_odd_pairs(bits) == odd, draw, key)
        answers = self.answers(bits)
        positions = jnp.arange(self.length, dtype=jnp.int32)
        if self.cumulative:
            return Batch(tokens=bits, positions=positions, targets=answers)
        end = jnp.full((1,), END, jnp.int32)
        return Batch(tokens=jnp.concatenate([bits, end]), positions=positions[-1:], targets=answers[-1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityConfig(BitStringConfig):
    """Parity: whether the number of ones is odd.

    A state of one bit solves it, `s_t = s_{t-1} xor x_t`. A linear recurrence keeps such a state with a factor of -1 at
    every 1; one whose factors are all positive cannot solve the task at all lengths in finite precision (Grazzi et al.
    2024). All bits count: without one of them only 1/2 of the answers are right, as for any constant answer.
    """

    def answers(self, bits: Int[Array, "n"]) -> Int[Array, "n"]:
        return bits.cumsum() % 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class MajorityConfig(BitStringConfig):
    """Whether more than half of the bits are ones.

    A count solves it, or the mean of the string, as attention with equal weights computes it. The answer to a tie is 0.
    So 0 is right in 1/2 of the answers for an odd number of bits, and in `1/2 + C(n, n/2) / 2^(n+1)` for an even number
    n, 0.60 at 16 bits and 0.55 at 64. In long strings, counting only a share s of the bits is right in
    `1/2 + arcsin(sqrt(s)) / pi` of the answers, 3/4 for half of the bits.
    """

    def answers(self, bits: Int[Array, "n"]) -> Int[Array, "n"]:
        return (2 * bits.cumsum() > 1 + jnp.arange(bits.size, dtype=jnp.int32)).astype(jnp.int32)
