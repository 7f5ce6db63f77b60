"""Windows of token shards in a global random order, read from disk on demand.

An epoch of a text visits `(tokens - 1) // length` adjacent windows, each once. In the first epoch they start at the
first token; less than a window remains at the end. In later epochs they start at a random token of the text joined to
a ring, so that documents are cut at other positions. The order of an epoch is a permutation that is computed index by
index (grain's global shuffle): memory does not grow with the text.

Texts are mixed row by row. The text of row k is a function of k: after any number of rows, each text has its share to
within fewer rows than there are texts, and exactly its share after a multiple of the sum of the weights (as the
smallest integers in their proportion). A text that has ended starts its next epoch. grain's own `mix` truncates the
weights to integers: 0.7 and 0.3 become 233 and 100.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import cast

import grain
import numpy as np
from jaxtyping import UInt

from jaxzoo.data.statistics.ngram import Tokens
from jaxzoo.data.tokenizer import reverse_complement

MOST_WINDOWS = 2**32 - 1
"""Largest number of windows per epoch: grain's permutation has 32 bits."""


class Concatenation:
    """Non-empty arrays of tokens (or objects with their slices) of one dtype, joined without a copy."""

    def __init__(self, parts: Sequence[Tokens]):
        self._parts = parts
        self._starts = list(itertools.accumulate((len(part) for part in parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, rows: slice) -> UInt[np.ndarray, "t"]:
        """Returns the tokens of a slice with step 1; a copy if it spans several parts."""
        start, stop, _ = rows.indices(len(self))
        index = max(bisect.bisect_right(self._starts, start, hi=len(self._parts)) - 1, 0)
        pieces = []
        while index < len(self._parts):
            begin, end = self._starts[index : index + 2]
            pieces.append(np.asarray(self._parts[index][max(start - begin, 0) : stop - begin]))
            if end >= stop:
                break
            index += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class ShuffledText:
    """Windows of one text in the order of its epochs; window i is a pure function of (text, length, seed, i). `tokens`
    is longer than `length`, the tokens of a window without its last target; `seed` holds non-negative numbers; with
    `reverse_complements` half of the windows are of the other strand of DNA. An epoch has `n_windows`."""

    def __init__(self, tokens: Concatenation, *, length: int, seed: Sequence[int], reverse_complements: bool = False):
        self.n_windows: int = (len(tokens) - 1) // length
        if self.n_windows > MOST_WINDOWS:
            raise ValueError(
                f"length={length} makes {self.n_windows:,} windows, which must be at most {MOST_WINDOWS:,}; "
                f"take a length of at least {-(-len(tokens) // MOST_WINDOWS)}"
            )
        self._tokens = tokens
        self._length = length
        self._seed = tuple(seed)
        self._reverses = reverse_complements
        # grain's own seed of epoch e is seed + e: neighbouring seeds would share orders.
        mixed = int(np.random.SeedSequence(self._seed).generate_state(1)[0])
        self._order = grain.MapDataset.range(self.n_windows).shuffle(seed=mixed).repeat()

    def window(self, number: int) -> UInt[np.ndarray, "t+1"]:
        """Returns window `number`, counted over all epochs, with the target of its last token."""
        first = _first_token(self._seed, number // self.n_windows, len(self._tokens))
        place = cast(int, self._order[number])
        start = (first + place * self._length) % len(self._tokens)
        window = self._tokens[start : start + self._length + 1]
        missing = self._length + 1 - len(window)
        window = np.concatenate([window, self._tokens[:missing]]) if missing else window
        if self._reverses and np.random.SeedSequence((*self._seed, 1, number)).generate_state(1)[0] % 2:
            return reverse_complement(window)
        return window


def as_integers(weights: Sequence[float]) -> tuple[int, ...]:
    """Returns the smallest integers in the proportion of positive weights, read as printed decimals."""
    fractions = [Fraction(repr(float(weight))) for weight in weights]
    denominator = math.lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * denominator) for fraction in fractions]
    divisor = math.gcd(*integers)
    return tuple(integer // divisor for integer in integers)


def source_of(row: int, weights: Sequence[int]) -> tuple[int, int]:
    """Returns the source of a row, and the row's number within its source. Of the first k rows, the first source has `k
    - floor(k r / w)`, w being the sum of all weights and r that of the others; the others divide the rest in the same
    way."""
    total = sum(weights)
    for source, weight in enumerate(weights):
        rest = total - weight
        before = row * rest // total
        after = (row + 1) * rest // total
        if before == after:
            return source, row - before
        row = before
        total = rest
    raise AssertionError("the last source takes all remaining rows")


@functools.lru_cache(maxsize=256)
def _first_token(seed: tuple[int, ...], epoch: int, n_tokens: int) -> int:
    """Returns the token at which the windows of an epoch begin."""
    return int(np.random.default_rng((*seed, epoch)).integers(n_tokens)) if epoch else 0
