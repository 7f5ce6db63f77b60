"""Recall tasks as training data: mixtures of examples for training, and a grid of validation sets.

Every batch is generated on demand. A training batch is of one task config, so that its examples have one shape. An
epoch visits every full batch of every entry of `train` once; which examples share a batch and the order of the batches
are pure functions of (seed, epoch).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from jaxzoo.config.checked import Checked, Rule, Seed
from jaxzoo.data.base import UNLABELLED, Batch, DataConfig, Score, ValidSet, make_valid_set
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.utils.array_typing import Int

MAX_EXAMPLES = 100_000_000
"""Largest number of examples, since the order of an epoch takes 8 bytes of memory per example."""
GUESSED_EXAMPLES = 1024
"""Number of examples from which a guessing line is computed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples(Checked):
    """The first examples of a task."""

    task: TaskConfig
    """Task config of the examples."""
    n_examples: Annotated[int, Rule(f"must be in [1, {MAX_EXAMPLES:,}]", 1, MAX_EXAMPLES)]
    """Number of examples, from index 0 on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallDataConfig(DataConfig):
    """Training and validation examples of recall tasks."""

    train: tuple[Examples, ...]
    """Training mixture; each task config may occur once."""
    valid: tuple[Examples, ...]
    """Validation sets, disjoint from all training examples of the same task."""
    seed: Seed = 0
    """Seed of the examples and of their order."""

    def __post_init__(self) -> None:
        for field in ("train", "valid"):
            tasks = [examples.task for examples in getattr(self, field)]
            self.require(field, bool(tasks), "must not be empty", "give it an Examples(task=..., n_examples=...)")
            rule = "must list each task once, or examples would repeat"
            self.require(field, len(set(tasks)) == len(tasks), rule, "add up their n_examples")
            alike = all(task.model_fields == self.model_fields for task in tasks)
            self.require(field, alike, f"must have tasks for one kind of model, with {self.model_fields or 'tokens'}")

    @property
    def model_fields(self) -> Mapping[str, Any]:
        return self.train[0].task.model_fields

    @property
    def first_target(self) -> int:
        return min(examples.task.first_target for examples in (*self.train, *self.valid))

    def build(self, *, batch_size: int, valid_batch_size: int) -> "RecallData":
        return RecallData(self, batch_size, valid_batch_size)

    def abstract_batch(self, batch_size: int) -> Batch:
        """Shapes of a batch of the longest training task."""
        longest = max((examples.task for examples in self.train), key=lambda task: task.length)
        example = longest.labelled(self.seed, np.arange(1), "train")
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), example)

    def guessing_lines(self) -> Mapping[str, float]:
        """Guessing lines by name of the metric: `valid/accuracy` and its slices."""
        weights: dict[str, list[tuple[int, float]]] = {}
        for examples in self.valid:
            names = [f"valid/accuracy/{key}={value}" for key, value in examples.task.slices.items()]
            for name in ("valid/accuracy", *names):
                weights.setdefault(name, []).append((examples.n_examples, guessing_line(examples.task)))
        return {
            name: round(sum(n * line for n, line in parts) / sum(n for n, _ in parts), 4)
            for name, parts in weights.items()
        }


@functools.cache
def guessing_line(task: TaskConfig) -> float:
    """Returns the accuracy of the best answer that depends only on the position of a question. At each position the
    answer is one fixed token (the most frequent target) or the token at one fixed earlier position (such as one of the
    values), whichever is more often right over `GUESSED_EXAMPLES`. It is at least one over the number of candidate
    values."""
    batch = task.labelled(0, np.arange(GUESSED_EXAMPLES), "test")
    tokens = task.copied(np.asarray(batch.tokens))
    targets = np.asarray(batch.targets)
    positions = np.broadcast_to(np.arange(task.length) if batch.positions is None else batch.positions, targets.shape)
    asked = targets != UNLABELLED
    hits = 0.0
    for position in np.unique(positions[asked]):
        rows, columns = np.nonzero(asked & (positions == position))
        target = targets[rows, columns]
        fixed = np.bincount(target).max()
        copied = (tokens[rows, : position + 1] == target[:, None]).sum(0).max()
        hits += float(max(fixed, copied))
    return hits / max(1, int(asked.sum()))


class RecallData:
    """`Dataset` of a `RecallDataConfig`. Raises `ValueError` if an entry of `train` does not fill one batch."""

    bytes_per_token: float | None = None
    packed: bool = False
    summary: str = ""

    def __init__(self, config: RecallDataConfig, batch_size: int, valid_batch_size: int) -> None:
        for i, examples in enumerate(config.train):
            if examples.n_examples < batch_size:
                rule = f"must be at least batch_size={batch_size}, or they would never be seen"
                received = f"train.{i}.n_examples={examples.n_examples}"
                raise ValueError(f"RecallDataConfig.{received} {rule}; lower batch_size")
        self.config = config
        self.batch_size = batch_size
        self.valid_batch_size = valid_batch_size
        tasks = [examples.task for examples in (*config.train, *config.valid)]
        self.vocab_size: int = max(task.vocab_size for task in tasks)
        self.max_length: int = max(task.length for task in tasks)
        self.batches_per_epoch: int = sum(examples.n_examples // batch_size for examples in config.train)

    def train(self, rows: Sequence[int] | None = None) -> "RecallStream":
        return RecallStream(self, rows)

    def valid(self) -> list[ValidSet]:
        """One set per entry of `config.valid`. Batches are equally large if the number of examples allows it, since a
        smaller last batch needs its own programs."""
        most = self.valid_batch_size
        seed = self.config.seed
        return [
            make_valid_set(
                examples.task.slices,
                examples.n_examples,
                -(-examples.n_examples // -(-examples.n_examples // most)),
                functools.partial(examples.task.labelled, seed, split="test"),
            )
            for examples in self.config.valid
        ]

    def manifest(self) -> None:
        """None: the config determines the examples."""

    def baselines(self) -> dict[str, Score]:
        """Empty: token counts score chance."""
        return {}

    def epoch(self, number: int) -> "Epoch":
        """Returns the examples of training epoch `number` in order: a pure function of (seed, number)."""
        sizes = [examples.n_examples for examples in self.config.train]
        rngs = [np.random.default_rng((self.config.seed, number, use)) for use in range(1 + len(sizes))]
        members = [rng.permutation(size) for rng, size in zip(rngs[1:], sizes, strict=True)]
        counts = [size // self.batch_size for size in sizes]
        places = np.stack([np.repeat(np.arange(len(sizes)), counts), np.concatenate([np.arange(n) for n in counts])], 1)
        return Epoch(number, members, rngs[0].permutation(places))


class Epoch(NamedTuple):
    number: int
    members: list[np.ndarray]
    """Shuffled example numbers for each entry of `train`: batch j begins at `j * batch_size`."""
    places: Int[np.ndarray, "n 2"]
    """(entry of `train`, batch of the entry), in order."""


class RecallStream:
    """Endless training batches of a `RecallData`. Batch n is a pure function of the config, the batch size and n; only
    the requested rows are generated."""

    def __init__(self, data: RecallData, rows: Sequence[int] | None = None) -> None:
        self._data = data
        self._rows = slice(None) if rows is None else np.asarray(rows)
        self._step = 0
        self._epoch = data.epoch(0)

    def __next__(self) -> Batch:
        number, place = divmod(self._step, self._data.batches_per_epoch)
        if number != self._epoch.number:
            self._epoch = self._data.epoch(number)
        self._step += 1
        entry, batch = self._epoch.places[place]
        first = batch * self._data.batch_size
        numbers = self._epoch.members[entry][first : first + self._data.batch_size][self._rows]
        return self._data.config.train[entry].task.labelled(self._data.config.seed, numbers, "train")

    def __iter__(self) -> "RecallStream":
        return self

    def get_state(self) -> dict[str, int]:
        return {"step": self._step}

    def set_state(self, state: dict[str, int]) -> None:
        """Moves the stream to a saved cursor. Raises `ValueError` if `state` is no cursor of this stream."""
        if set(state) != {"step"} or state["step"] < 0:
            rule = "must be {'step': n} with n >= 0, as get_state gives it"
            raise ValueError(f"RecallStream: state={state} {rule}")
        self._step = state["step"]
