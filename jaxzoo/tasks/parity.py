"""Parity: whether a string of bits has an odd number of ones.

A task of the released code alone (HazyResearch/zoology, `data/circuits.py`: `parity`, and `cumulative_parity` for
`cumulative=True`), not of the papers. A state of one bit solves it, `s_t = s_{t-1} xor x_t`. A linear recurrence keeps
such a state with a factor of -1 at every 1; one whose factors are all positive cannot solve the task at all lengths in
finite precision (Grazzi et al. 2024).

    1 1 0 1 0 0 END       with cumulative   1 1 0 1 0 0
    . . . . . . 1                           1 0 0 1 1 1

All bits count: who misses one of them is right in 1/2 of the answers, as is any constant answer. Strings, splits and
what disjoint means for short strings: `jaxzoo.tasks.bit_strings`.

| | release | here |
| --- | --- | --- |
| bits with `cumulative` | one fewer than `input_seq_len` | `length` |
| length | any | at least 4 bits |
| train and test | drawn from two seeds | disjoint |
"""

import dataclasses

import numpy as np

from jaxzoo.array_typing import Array, Int
from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks.bit_strings import END, BitStringConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityConfig(BitStringConfig):
    """Length and question of an example."""

    def answers(self, bits: Int[Array, "n"]) -> Int[Array, "n"]:
        """1 where the number of ones up to a bit is odd."""
        return bits.cumsum() % 2


def oracle(tokens: Int[Array | np.ndarray, "b t"], config: ParityConfig) -> Int[np.ndarray, "b t"]:
    """Solves the task by reading, with a state of one bit. Shares nothing with the generator.

    Returns:
      int32, -100 where it has nothing to say.
    """
    predictions = np.full(tokens.shape, UNLABELLED, np.int32)
    for row, example in enumerate(np.asarray(tokens).tolist()):
        is_odd = False
        for position, token in enumerate(example):
            is_odd ^= token == 1
            if config.cumulative or token == END:
                predictions[row, position] = is_odd
    return predictions
