"""Division of prompts into chunks of a few sizes, so that few programs are compiled and nothing is padded.

A row takes part in a chunk only if it has that many tokens left; other rows keep their states. So padding never enters
a state. Prompts of one length, such as a single prompt, are read in at most two chunks after those of the largest size:
whole 64s, then whole 4s. Prompts of different lengths are read in 64s, then 8s; the chunks of each depend on its own
length alone (on accelerators, on the batch size too). At least one token of every prompt remains: the decode loop reads
it and draws the first new token.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Integer

CHUNKS = (512, 64, 8)
"""Tokens of a chunk, largest first; at most the smallest number is left to the decode loop."""
WHOLE = (CHUNKS[1], 4)
"""Chunks of prompts of one length: multiples of these, so that at most 22 sizes below `CHUNKS[0]` are compiled."""

TokenIds = Sequence[int] | Integer[np.ndarray, "t"]


class Chunk(NamedTuple):
    """The same number of tokens of some rows."""

    tokens: Int32[np.ndarray, "b c"]
    """Token ids; zeros in rows that do not take part."""
    takes_part: Bool[np.ndarray, "b"]


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Non-empty prompts; made by `check_prompts`."""

    rows: tuple[Int32[np.ndarray, "t"], ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Int32[np.ndarray, "b"]:
        return np.array([len(row) for row in self.rows], np.int32)

    @property
    def have_one_length(self) -> bool:
        return bool(np.ptp(self.lengths) == 0)

    def chunks(self, largest: int = CHUNKS[0]) -> Iterator[Chunk]:
        """Yields chunks without the tails, in order. `largest`: `CHUNKS[0]` times a power of two; sizes between them
        differ by a factor of 4."""
        start, left = np.zeros(len(self), np.int32), self.lengths - 1
        larger = (largest >> 2 * i for i in range(largest.bit_length()))
        for size in (*(size for size in larger if size > CHUNKS[0]), *self._sizes()):
            while np.any(takes_part := left >= size):
                tokens = np.zeros((len(self), size), np.int32)
                for r in np.flatnonzero(takes_part):
                    tokens[r] = self.rows[r][start[r] : start[r] + size]
                yield Chunk(tokens, takes_part)
                start, left = start + size * takes_part, left - size * takes_part

    def _sizes(self) -> tuple[int, ...]:
        """Returns the sizes of chunks, of at most `CHUNKS[0]` tokens, in order."""
        if not self.have_one_length:
            return CHUNKS
        many, few = WHOLE
        left = (int(self.lengths[0]) - 1) % CHUNKS[0]
        return CHUNKS[0], *(size for size in (left // many * many, left % many // few * few) if size)

    def tail(self) -> tuple[Int32[np.ndarray, "b t"], Int32[np.ndarray, "b"]]:
        """Returns the tokens of each prompt that are in no chunk, padded by zeros, and their number, `1 ..
        CHUNKS[-1]`."""
        length = (self.lengths - 1) % (WHOLE[-1] if self.have_one_length else CHUNKS[-1]) + 1
        tokens = np.zeros((len(self), CHUNKS[-1]), np.int32)
        for row, n, prompt in zip(tokens, length, self.rows, strict=True):
            row[:n] = prompt[len(prompt) - n :]
        return tokens, length


def check_prompts(prompts: Sequence[TokenIds], *, n_ids: int) -> Prompts:
    """Checks prompts of any lengths with token ids in `[0, n_ids)`. Raises `ValueError` if there is none, or one is
    empty, no row of integers, or has an id outside the vocabulary."""
    if not len(prompts):
        raise ValueError("prompts=[] must hold at least one prompt")
    rows = tuple(np.asarray(prompt) for prompt in prompts)
    for i, row in enumerate(rows):
        if row.size == 0:
            raise ValueError(f"prompts[{i}] is empty; give at least one token to continue from")
        if row.ndim != 1 or not np.issubdtype(row.dtype, np.integer):
            raise ValueError(f"prompts[{i}]: {row.dtype} of shape {row.shape} must be integers of shape (t,)")
        wrong = row[(row < 0) | (row >= n_ids)]
        if wrong.size:
            raise ValueError(f"prompts[{i}]: token {wrong[0]} must be in [0, {n_ids}), the ids of the vocabulary")
    return Prompts(tuple(row.astype(np.int32) for row in rows))
