"""Repeated n-grams, which a model can recall from its own context (Zoology sec. 3, App. C.1 and D)."""

import numpy as np
from jaxtyping import Int32, Integer


def repeat_distances(
    tokens: Integer[np.ndarray, "b t"], n: int, segment_ids: Integer[np.ndarray, "b t"] | None = None
) -> Int32[np.ndarray, "b t"]:
    """Returns the distance from the n-gram that ends at each position to its last occurrence in the same row.

    At position i it is i - j for the largest j < i with tokens[j-n+1 .. j] == tokens[i-n+1 .. i], all of both in the
    row and, if segments are given, in one segment. N-grams may overlap: in "a a a" the bigram at 2 repeats the one
    at 1. It is 0 where the n-gram is the first of its kind, and at i < n - 1.

    N-grams of different segment ids, and those that hold two ids, equal none. Padding is a segment like any other.

    Raises `ValueError`: n is not positive.

    Cost: a stable sort of each row per token of the n-gram, and two more for segments.
    """
    b, t = tokens.shape
    if n < 1:
        raise ValueError(f"repeat_distances: n={n} must be positive")
    distances = np.zeros((b, t), np.int32)
    width = t - n + 1
    if width < 2:
        return distances
    keys = [tokens[:, i : i + width] for i in range(n)]
    in_one = np.ones((b, width), bool)  # whether an n-gram has one segment id
    if segment_ids is not None:
        for i in range(1, n):
            in_one &= segment_ids[:, i : i + width] == segment_ids[:, :width]
        keys += [segment_ids[:, :width], in_one]
    positions = np.lexsort(keys, axis=1)  # equal n-grams by position
    is_equal = np.ones((b, width - 1), bool)
    for key in keys:
        ordered = np.take_along_axis(key, positions, axis=1)
        is_equal &= ordered[:, 1:] == ordered[:, :-1]
    gaps = np.zeros((b, width), np.int32)
    gaps[:, 1:] = np.where(is_equal, positions[:, 1:] - positions[:, :-1], 0)
    np.put_along_axis(distances[:, n - 1 :], positions, gaps, axis=1)
    distances[:, n - 1 :][~in_one] = 0
    return distances
