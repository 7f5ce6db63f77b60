"""Majority: whether more than half of the bits of a string are ones.

A task of the released code alone (HazyResearch/zoology, `data/circuits.py`: `majority`, and `cumulative_majority` for
`cumulative=True`), not of the papers. A count solves it, or the mean of the string, as attention with equal weights
computes it.

    1 1 0 1 0 0 END       with cumulative   1 1 0 1 0 0
    . . . . . . 0                           1 1 1 1 1 0

The answer to a tie is 0. So 0 is right in 1/2 of the answers for an odd number of bits, and in `1/2 + C(n, n/2) /
2^(n+1)` for an even number n, 0.60 at 16 bits and 0.55 at 64. In long strings, who counts only a share s of the bits is
right in `1/2 + arcsin(sqrt(s)) / pi` of the answers, 3/4 for half of the bits. Strings, splits and what disjoint means
for short strings: `jaxzoo.tasks.bit_strings`.

| | release | here |
| --- | --- | --- |
| a tie | 0; with `cumulative` 1 | 0 |
| length | any | at least 4 bits |
| train and test | drawn from two seeds | disjoint |
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxzoo.array_typing import Array, Int
from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks.bit_strings import END, BitStringConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MajorityConfig(BitStringConfig):
    """Length and question of an example."""

    def answers(self, bits: Int[Array, "n"]) -> Int[Array, "n"]:
        """1 where more than half of the bits up to here are ones."""
        return (2 * bits.cumsum() > 1 + jnp.arange(bits.size, dtype=jnp.int32)).astype(jnp.int32)


def oracle(tokens: Int[Array | np.ndarray, "b t"], config: MajorityConfig) -> Int[np.ndarray, "b t"]:
    """Solves the task by counting ones against zeros. Shares nothing with the generator.

    Returns:
      int32, -100 where it has nothing to say.
    """
    predictions = np.full(tokens.shape, UNLABELLED, np.int32)
    for row, example in enumerate(np.asarray(tokens).tolist()):
        lead = 0
        for position, token in enumerate(example):
            lead += {0: -1, 1: 1}.get(token, 0)
            if config.cumulative or token == END:
                predictions[row, position] = lead > 0
    return predictions
