"""Associative recall on real text: scores on next tokens that a model could recall, and on all others.

Zoology (Arora et al. 2023), sec. 3.1 and App. C.1. A target that ends an n-gram (n = 2 unless stated otherwise) is

- repeated: the same n-gram occurs earlier in the model's context;
- rare: its bigram occurs at most 1250 times in training, so that it can hardly have been memorized;
- an AR hit: both. The slices of Table 1 are the AR hits and all other tokens; Figure 1 has repeated and other tokens by
  occurrences of the bigram in training.

The context is the row, and with segments the part of it in the segment of the position that predicts the target. So a
target belongs to the segment of the previous position: end-of-text that opens the next document (`packing="segments"`)
is as a target the last token of the document before, and as an input the first of its own.

Deviations. Sec. 3.1 says "at most" 1250 times, App. C.1 "fewer than": ours is the former. The paper's number is for 10B
training tokens, and is not scaled. Counts are those of the training tokens on disk, however many of these a run has
read. An AR hit of n = 3 is a repeated trigram whose bigram is rare (then the trigram is rare too). Repeats are of token
ids, as in the paper.
"""

import itertools
import math
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64, Integer

from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.data.statistics.bigram_counts import THRESHOLD
from jaxzoo.data.statistics.repeats import repeat_distances
from jaxzoo.utils.array_typing import Array

FREQUENCY_EDGES = (1, 2, *(10**k for k in range(1, 16)))
"""First values of the bins of frequency after the bin 0: 1, 2-9, 10-99, ..."""
DISTANCE_EDGES = (1, *(4**k for k in range(2, 12)))
"""First values of the bins of distance: 1-15, 16-63, 64-255, ...; bin 0: not repeated."""
_SHAPE = (len(FREQUENCY_EDGES) + 1, 2, len(DISTANCE_EDGES) + 1, 2)

ALL = "all tokens"
HITS = "AR hits"
REPEATS = "repeated bigrams"
"""Name of the hits if training counts are unknown."""


class Bigrams(Protocol):
    """Counts of bigrams in training: `BigramCounts`, or a table in memory."""

    def counts(self, previous: Integer[np.ndarray, "n"], following: Integer[np.ndarray, "n"], /) -> np.ndarray:
        """Returns how often each `following` came right after its `previous`, (n,)."""
        ...


class SliceScore(NamedTuple):
    """Score of a model on the tokens of a slice."""

    tokens: int
    share: float
    nats: float | None
    """Mean of `-log p(token)`; None without tokens."""
    standard_error: float | None
    """Standard error of the mean for independent tokens (within a document they are not); None below two tokens."""

    @property
    def perplexity(self) -> float | None:
        return None if self.nats is None else math.exp(min(self.nats, 700.0))


class Sections(NamedTuple):
    """Slices of a model: `SliceScore` by name; bins without tokens are left out, others are in rising order."""

    slices: dict[str, SliceScore]
    """All tokens, AR hits, other tokens, frequent repeats and AR hits of n = 3."""
    repeated_by_frequency: dict[str, SliceScore]
    """Repeated bigrams by occurrences in training; empty if unknown."""
    others_by_frequency: dict[str, SliceScore]
    """The same for tokens whose bigram is not repeated."""
    hits_by_distance: dict[str, SliceScore]
    """AR hits by the distance to their bigram's last occurrence, in tokens."""


class MeasuredModel(NamedTuple):
    name: str
    step: int
    """Training step of its checkpoint."""
    n_parameters: int
    sections: Sections
    windows: Float64[np.ndarray, "n 2"] | None = None
    """Nats of each window: of all its tokens, and of its hits."""


class RecallSums:
    """Sums of nats over targets by category, and two sums per window. `bigrams` are the counts of training; None: every
    bigram counts as rare, and an AR hit is a repeated bigram. A bigram is rare if training has at most `at_most`.
    Raises `ValueError` if `at_most` is negative."""

    def __init__(self, bigrams: Bigrams | None, *, at_most: int = THRESHOLD):
        if at_most < 0:
            raise ValueError(f"RecallSums.at_most={at_most} must not be negative")
        self.bigrams: Bigrams | None = bigrams
        self.at_most: int = at_most
        # By bin of frequency, whether it is rare, bin of distance (0: not repeated), whether its trigram is repeated.
        self._tokens = np.zeros(_SHAPE, np.int64)
        self._nats = np.zeros(_SHAPE)
        self._squares = np.zeros(_SHAPE)
        _, rare, distance, _ = np.indices(_SHAPE).reshape(len(_SHAPE), -1)
        self._is_hit = (rare == 1) & (distance > 0)
        self._windows: list[Float64[np.ndarray, "b 2"]] = []

    def add(self, batch: Batch, nats: Float[np.ndarray | Array, "b t"]) -> None:
        """Adds the labelled targets of a batch; rows may be padded by rows without labels. `nats` are read last, as the
        device may still compute them. Raises `ValueError` if the targets are not the next tokens."""
        cells = self.cells_of(batch)
        labelled = np.asarray(batch.targets) != UNLABELLED
        values = np.asarray(nats, np.float64)[labelled]
        size = math.prod(_SHAPE)
        self._tokens += np.bincount(cells, minlength=size).reshape(_SHAPE)
        self._nats += np.bincount(cells, values, size).reshape(_SHAPE)
        self._squares += np.bincount(cells, values**2, size).reshape(_SHAPE)
        sums = [np.bincount(labelled.nonzero()[0], x, len(labelled)) for x in (values, values * self._is_hit[cells])]
        self._windows.append(np.stack(sums, axis=1)[labelled.any(axis=1)])

    def is_hit(self, batch: Batch) -> Bool[np.ndarray, "n"]:
        """Returns whether each labelled target of a batch is an AR hit, row by row."""
        return self._is_hit[self.cells_of(batch)]

    def windows(self) -> Float64[np.ndarray, "n 2"]:
        return np.concatenate([np.zeros((0, 2)), *self._windows])

    def sections(self) -> Sections:
        frequency, rare, distance, trigram = np.indices(_SHAPE)
        repeated = distance > 0
        is_rare = rare == 1
        hits = repeated & is_rare
        known = self.bigrams is not None
        slices = {
            ALL: distance >= 0,
            HITS if known else REPEATS: hits,
            "other tokens": ~hits,
            **({"frequent repeats": repeated & ~is_rare} if known else {}),
            f"{HITS}, n = 3" if known else "repeated trigrams": is_rare & (trigram == 1),
        }
        frequencies = {name: frequency == i for i, name in enumerate(bin_names(FREQUENCY_EDGES))} if known else {}
        distances = {name: distance == i for i, name in enumerate(bin_names(DISTANCE_EDGES)) if i > 0}
        return Sections(
            {name: self._score(cells) for name, cells in slices.items()},
            self._bins(frequencies, repeated),
            self._bins(frequencies, ~repeated),
            self._bins(distances, hits),
        )

    def cells_of(self, batch: Batch) -> Int64[np.ndarray, "n"]:
        """Returns the index of the sum of each labelled target of a batch, row by row."""
        tokens = np.asarray(batch.tokens)
        targets = np.asarray(batch.targets)
        is_text = batch.positions is None and targets.shape == tokens.shape
        if not is_text or not np.all((targets[:, :-1] == tokens[:, 1:]) | (targets[:, :-1] == UNLABELLED)):
            raise ValueError(
                "recall slices need text, whose targets are the next tokens at every position; these data have labels "
                "of their own: take a run on text"
            )
        segment_ids = None if batch.segment_ids is None else np.asarray(batch.segment_ids)
        labelled = targets != UNLABELLED
        bigram, trigram = (target_repeats(tokens, targets, n, segment_ids)[labelled] for n in (2, 3))
        seen = np.zeros(bigram.shape, np.int64)
        if self.bigrams is not None:
            seen = np.asarray(self.bigrams.counts(tokens[labelled], targets[labelled]))
        places = (
            np.searchsorted(FREQUENCY_EDGES, seen, side="right"),
            (seen <= self.at_most).astype(np.int64),
            np.searchsorted(DISTANCE_EDGES, bigram, side="right"),
            (trigram > 0).astype(np.int64),
        )
        return np.ravel_multi_index(places, _SHAPE)

    def _bins(self, bins: dict[str, Bool[np.ndarray, "..."]], of: Bool[np.ndarray, "..."]) -> dict[str, SliceScore]:
        scores = {name: self._score(cells & of) for name, cells in bins.items()}
        return {name: score for name, score in scores.items() if score.tokens}

    def _score(self, cells: Bool[np.ndarray, "..."]) -> SliceScore:
        n = int(self._tokens[cells].sum())
        total = max(1, int(self._tokens.sum()))
        if n == 0:
            return SliceScore(0, 0.0, None, None)
        mean = float(self._nats[cells].sum()) / n
        variance = max(0.0, float(self._squares[cells].sum()) / n - mean**2)
        return SliceScore(n, n / total, mean, math.sqrt(variance / (n - 1)) if n > 1 else None)


def target_repeats(
    tokens: Integer[np.ndarray, "b t"],
    targets: Integer[np.ndarray, "b t"],
    n: int,
    segment_ids: Integer[np.ndarray, "b t"] | None = None,
) -> Int[np.ndarray, "b t"]:
    """Returns the distance in tokens to the last end of the n-gram (n >= 2) that ends with each target, 0 if it is not
    repeated. Both n-grams without the target are in its row, and in the segment of the position that predicts the
    target. `targets` has the next token at every position, or `UNLABELLED`, whose distance means nothing."""
    b, t = tokens.shape
    segments = np.zeros((b, t), np.int64) if segment_ids is None else segment_ids
    ends = np.ones((b, t), bool)
    ends[:, :-1] = segments[:, 1:] != segments[:, :-1]
    # Each segment becomes its own sequence, followed by the target of its last token; the next one starts one later.
    moved = np.cumsum(ends, axis=1)
    places = np.arange(t)[None, :] + moved - ends
    sequence = np.zeros((b, t + int(moved[:, -1].max(initial=0))), np.int64)
    runs = np.full(sequence.shape, t + 1, np.int64)  # of the padding
    for where, what in ((places + 1, np.maximum(targets, 0)), (places, tokens)):
        np.put_along_axis(sequence, where, what, axis=1)
        np.put_along_axis(runs, where, moved - ends, axis=1)
    return np.take_along_axis(repeat_distances(sequence, n, runs), places + 1, axis=1)


def bin_names(edges: tuple[int, ...]) -> list[str]:
    """Returns names of the bins: `0`, `1`, `2-9`, ..., `1,000-9,999`, `10,000 or more`."""
    begins = (0, *edges)
    names = [f"{low}" if high == low + 1 else f"{low:,}-{high - 1:,}" for low, high in itertools.pairwise(begins)]
    return [*names, f"{begins[-1]:,} or more"]
