"""Repeated n-grams and bigram counts by dictionaries and loops."""

import itertools
from collections import Counter
from collections.abc import Collection, Sequence


def repeat_distances(
    tokens: Sequence[Sequence[int]], n: int, segment_ids: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """`jaxzoo.data.statistics.repeats.repeat_distances` of lists."""
    result = []
    for row, ids in enumerate(tokens):
        segments = [0] * len(ids) if segment_ids is None else list(segment_ids[row])
        last_end: dict[tuple, int] = {}
        distances = [0] * len(ids)
        for i in range(n - 1, len(ids)):
            if len(set(segments[i - n + 1 : i + 1])) > 1:
                continue
            ngram = (segments[i], *ids[i - n + 1 : i + 1])
            if ngram in last_end:
                distances[i] = i - last_end[ngram]
            last_end[ngram] = i
        result.append(distances)
    return result


def bigram_counts(stream: Sequence[int]) -> Counter[tuple[int, int]]:
    """Counts of each pair of adjacent tokens."""
    return Counter(itertools.pairwise(stream))


def repeats_of_subset(
    shards: Sequence[Sequence[tuple[Sequence[int], str]]],
    subset: str,
    *,
    end_of_text: int,
    length: int,
    n: int,
    stop: Collection[int] = (),
) -> tuple[Counter[int], list[int]]:
    """Histogram of distances in the sequences of a subset, and the number of repeats per sequence."""
    distances: Counter[int] = Counter()
    per_sequence = []
    for documents in shards:
        stream = [token for ids, name in documents if name == subset for token in (*ids, end_of_text)]
        for start in range(0, len(stream) - length + 1, length):
            row = stream[start : start + length]
            (found,) = repeat_distances([row], n)
            kept = [d for i, d in enumerate(found) if d and not set(stop).intersection(row[i - n + 1 : i + 1])]
            distances.update(kept)
            per_sequence.append(len(kept))
    return distances, per_sequence
