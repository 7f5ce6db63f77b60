"""MQAR as the trainer's data: mixtures of segments to train on, and a grid of validation sets.

Nothing is stored: every batch is generated when it is asked for. A training batch comes from one segment, so
that its examples have one length and one number of pairs. An epoch visits every full batch of every segment
once; which examples share a batch and the order of the batches are pure functions of (seed, epoch).
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxzoo.array_typing import Int
from jaxzoo.data.base import Batch, ValidSet
from jaxzoo.tasks import mqar

Segment = tuple[int, int, int]
"""(length, n_pairs, n_examples)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallDataConfig:
    """Which MQAR examples to train and to validate on."""

    task: mqar.MQARConfig = mqar.MQARConfig()
    """Vocabulary, gap law, values and fillers of all segments; its length and n_pairs give way to theirs."""
    train: tuple[Segment, ...] = ((64, 8, 100_000),)
    """Training segments, each (length, n_pairs, n_examples)."""
    valid: tuple[Segment, ...] = ((64, 8, 1_000),)
    """Validation sets, each (length, n_pairs, n_examples), disjoint from all training examples."""
    seed: int = 0
    """Seed of the examples and of their order."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("RecallDataConfig.train=() must hold at least one (length, n_pairs, n_examples)")
        if self.seed < 0:
            raise ValueError(f"RecallDataConfig.seed={self.seed} must not be negative")
        for field, segments in (("train", self.train), ("valid", self.valid)):
            self._check(field, segments)

    def _check(self, field: str, segments: tuple[Segment, ...]) -> None:
        received = f"RecallDataConfig.{field}={segments}"
        if len({segment[:2] for segment in segments}) < len(segments):
            rule = "must name each (length, n_pairs) once, or examples would repeat"
            raise ValueError(f"{received} {rule}; add up their n_examples")
        if any(segment[2] < 1 for segment in segments):
            raise ValueError(f"{received} must have n_examples of at least 1; drop the empty segment")
        for segment in segments:
            self.segment_task(segment)

    def segment_task(self, segment: Segment) -> mqar.MQARConfig:
        """The task of one segment. Raises `ValueError` where MQAR has no such examples."""
        return dataclasses.replace(self.task, length=segment[0], n_pairs=segment[1])


def zoology_figure2(length: int) -> RecallDataConfig:
    """Zoology, Figure 2 (Appendix E.2): one length, length / 16 pairs (64 at length 512), 100k + 3k examples.

    The task is the paper's; for the released code's, replace `task` by `mqar.release(length, n_pairs)`.

    Args:
      length: 64, 128, 256 or 512.

    Raises:
      ValueError: the figure has no such length.
    """
    pairs = {64: 4, 128: 8, 256: 16, 512: 64}
    if length not in pairs:
        raise ValueError(f"zoology_figure2: length={length} must be one of {', '.join(map(str, pairs))}")
    geometry = (length, pairs[length])
    return RecallDataConfig(task=mqar.paper(*geometry), train=((*geometry, 100_000),), valid=((*geometry, 3_000),))


def based_figure2() -> RecallDataConfig:
    """Based, Figures 2 and 3: one mixture for all models, validated far beyond its lengths and pairs.

    The paper does not print the mixture; it is that of the released configurations (HazyResearch/zoology,
    `arxiv24_based_figure2`), and so is the task: a = 0.01, distinct values, fillers from the whole
    vocabulary.
    """
    train = ((64, 4, 100_000), (128, 8, 20_000), (256, 16, 20_000), (256, 32, 20_000), (256, 64, 20_000))
    grid = ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
    valid = tuple((length, n_pairs, 1_000) for length, n_pairs in grid)
    return RecallDataConfig(task=mqar.release(64, 4, fillers="any"), train=train, valid=valid)


class RecallData:
    """The data set of a `RecallDataConfig`, as the trainer asks for it (`jaxzoo.data.base.Dataset`).

    Args:
      config: what to train and validate on.
      batch_size: examples of a training batch.
      valid_batch_size: examples of a validation batch; the last of a set may be smaller.

    Raises:
      ValueError: a batch size is not positive, or a training segment does not fill one batch.
    """

    bytes_per_token: float | None = None

    def __init__(self, config: RecallDataConfig, batch_size: int, valid_batch_size: int) -> None:
        for name, size in (("batch_size", batch_size), ("valid_batch_size", valid_batch_size)):
            if size < 1:
                raise ValueError(f"RecallData: {name}={size} must be at least 1")
        for segment in config.train:
            if segment[2] < batch_size:
                rule = f"must have at least batch_size={batch_size} examples, or it would never be seen"
                raise ValueError(f"RecallData: training segment {segment} {rule}; lower batch_size")
        self.config = config
        self.batch_size = batch_size
        self.valid_batch_size = valid_batch_size
        self.vocab_size = config.task.vocab_size
        self.max_length = max(segment[0] for segment in (*config.train, *config.valid))
        self.batches_per_epoch = sum(segment[2] // batch_size for segment in config.train)

    def train(self) -> "RecallStream":
        """A new training stream at its beginning."""
        return RecallStream(self)

    def valid(self) -> list[ValidSet]:
        """One set for each segment of `config.valid`, with slices `length` and `pairs`."""
        return [self._valid_set(segment) for segment in self.config.valid]

    def _valid_set(self, segment: Segment) -> ValidSet:
        length, n_pairs, n_examples = segment
        n_batches = -(-n_examples // self.valid_batch_size)

        def batch(i: int) -> Batch:
            if not 0 <= i < n_batches:
                raise IndexError(f"validation batch {i} must be in [0, {n_batches})")
            first = i * self.valid_batch_size
            stop = min(first + self.valid_batch_size, n_examples)
            return self.examples(segment, np.arange(first, stop), "test")

        return ValidSet({"length": length, "pairs": n_pairs}, n_batches, batch)

    def examples(self, segment: Segment, numbers: Int[np.ndarray, "b"], split: mqar.Split) -> Batch:
        """Examples of a segment by their numbers: `tokens (b, t)`, `positions (b, m)`, `targets (b, m)`."""
        return mqar.MQAR(self.config.segment_task(segment)).labelled(self.config.seed, numbers, split)

    def epoch(self, number: int) -> "Epoch":
        """What training epoch `number` visits and in which order: a pure function of (seed, number)."""
        sizes = [segment[2] for segment in self.config.train]
        members = [self._rng(number, 1 + s).permutation(size) for s, size in enumerate(sizes)]
        places = [(s, b) for s, size in enumerate(sizes) for b in range(size // self.batch_size)]
        return Epoch(number, members, self._rng(number, 0).permutation(np.asarray(places)))

    def _rng(self, epoch: int, use: int) -> np.random.Generator:
        return np.random.default_rng((self.config.seed, epoch, use))


class Epoch(NamedTuple):
    """The plan of one training epoch."""

    number: int
    """Which epoch."""
    members: list[np.ndarray]
    """For each segment its example numbers, shuffled: batch j holds those from `j * batch_size` on."""
    places: Int[np.ndarray, "n 2"]
    """(segment, batch of the segment), in the order in which they are visited."""


class RecallStream:
    """Endless training batches of a `RecallData`. Batch n is a pure function of the config, the batch size
    and n."""

    def __init__(self, data: RecallData) -> None:
        self._data = data
        self._step = 0
        self._epoch = data.epoch(0)

    def __next__(self) -> Batch:
        """The next training batch: `tokens (b, t)`, `positions (b, m)` and `targets (b, m)`, int32."""
        number, place = divmod(self._step, self._data.batches_per_epoch)
        if number != self._epoch.number:
            self._epoch = self._data.epoch(number)
        self._step += 1
        segment, batch = self._epoch.places[place]
        first = batch * self._data.batch_size
        members = self._epoch.members[segment][first : first + self._data.batch_size]
        return self._data.examples(self._data.config.train[segment], members, "train")

    def __iter__(self) -> "RecallStream":
        return self

    def get_state(self) -> dict[str, int]:
        """The cursor: how many batches have been given."""
        return {"step": self._step}

    def set_state(self, state: dict[str, int]) -> None:
        """Moves the stream to a saved cursor.

        Raises:
          ValueError: `state` is no cursor of this stream.
        """
        if set(state) != {"step"} or state["step"] < 0:
            rule = "must be {'step': n} with n >= 0, as get_state gives it"
            raise ValueError(f"RecallStream: state={state} {rule}")
        self._step = state["step"]
