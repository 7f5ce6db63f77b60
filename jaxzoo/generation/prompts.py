"""Prompts of different lengths as chunks of a few sizes, so that few programs are compiled and nothing is padded.

A row takes part in a chunk only if it has that many tokens left; the others sit it out and keep their states.
So no token of padding ever enters a state, and a prompt is cut in the same places whatever the other prompts are.
At least one token of every prompt remains: the decode loop reads it and draws the first new token.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Integer

CHUNKS = (512, 64, 8)
"""Tokens of a chunk, largest first; the smallest is also the most that the decode loop has left to read."""

TokenIds = Sequence[int] | Integer[np.ndarray, "t"]
"""Token ids of one prompt."""


class Chunk(NamedTuple):
    """The same number of tokens of some rows."""

    tokens: Int32[np.ndarray, "b c"]
    """The tokens; zeros, which nothing reads, in the rows that sit it out."""
    takes_part: Bool[np.ndarray, "b"]
    """Which rows read it."""


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Some prompts, none of them empty; make them by `check_prompts`."""

    rows: tuple[Int32[np.ndarray, "t"], ...]
    """The token ids of each."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Int32[np.ndarray, "b"]:
        """Tokens of each."""
        return np.array([len(row) for row in self.rows], np.int32)

    def chunks(self) -> Iterator[Chunk]:
        """Chunks without the tails, in the order in which they are read."""
        start, left = np.zeros(len(self), np.int32), self.lengths - 1
        for size in CHUNKS:
            while np.any(takes_part := left >= size):
                tokens = np.zeros((len(self), size), np.int32)
                for r in np.flatnonzero(takes_part):
                    tokens[r] = self.rows[r][start[r] : start[r] + size]
                yield Chunk(tokens, takes_part)
                start, left = start + size * takes_part, left - size * takes_part

    def tail(self) -> tuple[Int32[np.ndarray, "b t"], Int32[np.ndarray, "b"]]:
        """The tokens of each that no chunk has, then zeros, which nothing reads; and how many, `1 .. CHUNKS[-1]`."""
        length = (self.lengths - 1) % CHUNKS[-1] + 1
        tokens = np.zeros((len(self), CHUNKS[-1]), np.int32)
        for row, n, prompt in zip(tokens, length, self.rows, strict=True):
            row[:n] = prompt[len(prompt) - n :]
        return tokens, length


def check_prompts(prompts: Sequence[TokenIds], *, n_ids: int) -> Prompts:
    """Takes prompts as they come: token ids in `[0, n_ids)` of each, of any lengths.

    Raises `ValueError`: there is none, or one is empty, no row of integers, or has an id outside the vocabulary.
    """
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
