"""Repeated n-grams, which a model can recall from its own context (Zoology sec. 3, App. C.1 and D)."""

import numpy as np
from jaxtyping import Bool, Int32, Integer, UInt64

_MOST_POSITIONS = 2**21
"""Columns of a row: a code, a symbol and a position, none longer than 21 bits after ranking, fit into 64 bits."""


def repeat_distances(
    tokens: Integer[np.ndarray, "b t"], n: int, segment_ids: Integer[np.ndarray, "b t"] | None = None
) -> Int32[np.ndarray, "b t"]:
    """Returns the distance from the n-gram that ends at each position to its last occurrence in the same row.

    At position i it is i - j for the largest j < i with tokens[j-n+1 .. j] == tokens[i-n+1 .. i], all of both in the
    row and, if segments are given, in one segment. N-grams may overlap: in "a a a" the bigram at 2 repeats the one
    at 1. It is 0 where the n-gram is the first of its kind, and at i < n - 1.

    Args:
        tokens: ids in `[0, 2^32)`; rows of at most 2^21 tokens.
        n: length of the n-grams, positive.
        segment_ids: n-grams of different ids, and those that hold two ids, equal none. Padding is a segment like any
            other.

    Raises:
        ValueError: an argument is out of its range.

    Cost: a sort of each row for n = 2 and 16-bit ids; one or two more per further token of the n-gram.
    """
    b, t = tokens.shape
    if n < 1 or t > _MOST_POSITIONS:
        raise ValueError(f"repeat_distances: n={n} must be positive, and rows of {t} tokens at most 2^21 long")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < 2**32:
        raise ValueError(f"repeat_distances: ids of tokens, {tokens.min()} to {tokens.max()}, must be in [0, 2^32)")
    distances = np.zeros((b, t), np.int32)
    width = t - n + 1
    if b == 0 or width < 2:
        return distances
    codes = tokens[:, :width].astype(np.uint64)
    for i in range(1, n):
        codes = _joined(codes, tokens[:, i : i + width])
    in_one = None
    if segment_ids is not None:
        in_one = np.ones(codes.shape, bool)  # whether an n-gram has one segment id
        for i in range(1, n):
            in_one &= segment_ids[:, i : i + width] == segment_ids[:, :width]
        segments = segment_ids[:, :width].astype(np.int64)
        codes = _joined(_joined(codes, segments - segments.min()), in_one)  # n-grams across a border: apart from others
    distances[:, n - 1 :] = _distances_to_last_equal(codes)
    if in_one is not None:
        distances[:, n - 1 :][~in_one] = 0
    return distances


def _joined(
    codes: UInt64[np.ndarray, "b w"], symbols: Integer[np.ndarray, "b w"] | Bool[np.ndarray, "b w"]
) -> UInt64[np.ndarray, "b w"]:
    """Returns codes that are equal in a row where both the codes and the symbols are, and leave bits for a position."""
    symbols = symbols.astype(np.uint64)
    room = 64 - _bits(codes.shape[1] - 1)
    if _bits(codes.max()) + _bits(symbols.max()) > room:
        codes = _ranks(codes)
    if _bits(codes.max()) + _bits(symbols.max()) > room:
        symbols = _ranks(symbols)
    return codes << np.uint64(_bits(symbols.max())) | symbols


def _ranks(codes: UInt64[np.ndarray, "b w"]) -> UInt64[np.ndarray, "b w"]:
    """Returns numbers below w that are equal in a row where the codes are."""
    ordered, positions = _sorted_with_positions(codes)
    is_new = np.ones(codes.shape, bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ranks = np.empty_like(codes)
    np.put_along_axis(ranks, positions, (np.cumsum(is_new, axis=1) - 1).astype(np.uint64), axis=1)
    return ranks


def _distances_to_last_equal(codes: UInt64[np.ndarray, "b w"]) -> Int32[np.ndarray, "b w"]:
    """Returns the distance to the last occurrence of the same code; 0: none."""
    ordered, positions = _sorted_with_positions(codes)
    gaps = np.zeros(codes.shape, np.int32)
    gaps[:, 1:] = np.where(ordered[:, 1:] == ordered[:, :-1], positions[:, 1:] - positions[:, :-1], 0)
    distances = np.empty_like(gaps)
    np.put_along_axis(distances, positions, gaps, axis=1)
    return distances


def _sorted_with_positions(
    codes: UInt64[np.ndarray, "b w"],
) -> tuple[UInt64[np.ndarray, "b w"], Integer[np.ndarray, "b w"]]:
    """Sorts each row, equal codes by position, and returns these positions: one sort of numbers that hold both."""
    low = np.uint64(_bits(codes.shape[1] - 1))
    both = codes << low | np.arange(codes.shape[1], dtype=np.uint64)
    both.sort(axis=1)
    return both >> low, (both & ((np.uint64(1) << low) - np.uint64(1))).astype(np.int64)


def _bits(largest: int | np.integer) -> int:
    return int(largest).bit_length()
