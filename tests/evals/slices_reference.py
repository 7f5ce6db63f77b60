"""Slices of targets by a linear search."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

LABELS = {0: "0", 1: "1", 2: "2-9", 10: "10-99", 100: "100-999", 1000: "1,000-9,999"}
DISTANCES = {1: "1-15", 16: "16-63", 64: "64-255", 256: "256-1,023"}


class CountedBigrams:
    """Bigram counts in memory, as those of a training stream on disk."""

    def __init__(self, counts):
        self.table = Counter(counts)

    def counts(self, previous, following):
        return np.array(
            [self.table[pair] for pair in zip(previous.tolist(), following.tolist(), strict=True)], np.int64
        )


def distance_back(read: Sequence[int], target: int, n: int) -> int:
    """Distance to the last occurrence of the n-gram that ends with `target`; 0 if there is none."""
    if len(read) < n - 1:
        return 0
    ngram = [*read[len(read) - n + 1 :], target]
    for end in range(len(read) - 1, n - 2, -1):
        if list(read[end - n + 1 : end + 1]) == ngram:
            return len(read) - end
    return 0


def slow_sections(rows, bigrams: CountedBigrams, at_most: int) -> dict[str, dict[str, list[float]]]:
    """The nats of the targets of each slice.

    Args:
        rows: of (tokens, targets, segment ids, nats), each a list; target -100 does not count.
    """
    found: dict[str, dict[str, list[float]]] = {
        name: {} for name in ("slices", "repeated_by_frequency", "others_by_frequency", "hits_by_distance")
    }

    def put(section, name, value):
        found[section].setdefault(name, []).append(value)

    for tokens, targets, segments, nats in rows:
        for i, target in enumerate(targets):
            if target == -100:
                continue
            read = [token for token, segment in zip(tokens[: i + 1], segments[: i + 1], strict=True)
                    if segment == segments[i]]  # fmt: skip
            back, seen = distance_back(read, target, 2), bigrams.table[tokens[i], target]
            hit = back > 0 and seen <= at_most
            put("slices", "all tokens", nats[i])
            put("slices", "AR hits" if hit else "other tokens", nats[i])
            if back > 0 and seen > at_most:
                put("slices", "frequent repeats", nats[i])
            if distance_back(read, target, 3) > 0 and seen <= at_most:
                put("slices", "AR hits, n = 3", nats[i])
            put(f"{'repeated' if back else 'others'}_by_frequency", _label(LABELS, seen), nats[i])
            if hit:
                put("hits_by_distance", _label(DISTANCES, back), nats[i])
    return found


def check_sections(sections, slow) -> None:
    """Asserts that every score of `sections` (a `Sections` as a dict of JSON) is that of the slow ones."""
    n = len(slow["slices"]["all tokens"])
    for section, values in slow.items():
        scores = {name: score for name, score in sections[section].items() if score["tokens"]}
        assert scores.keys() == values.keys(), section
        for name, nats in values.items():
            score, mean = scores[name], math.fsum(nats) / len(nats)
            assert score["tokens"] == len(nats), (section, name)
            assert math.isclose(score["share"], len(nats) / n)
            assert math.isclose(score["nats"], mean, rel_tol=1e-5), (section, name)
            if len(nats) > 1:
                error = np.std(nats, ddof=1) / math.sqrt(len(nats))
                assert math.isclose(score["standard_error"], error, rel_tol=1e-3, abs_tol=1e-6), (section, name)


def _label(labels, value):
    return labels[max(begin for begin in labels if begin <= value)]
