"""The protocol of the benchmark "recall per byte": models, tasks, training and scores (docs/recall_per_byte.md).

A protocol is frozen once it is published. Rows of different protocols are never compared.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.mixers import BaseConvConfig, MixerConfig
from jaxzoo.mixers.base import Inherited
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks import mqar, permutations
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.forgetting_mqar import ForgettingMQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.utils.array_typing import Array, Bool, PRNGKeyArray
from jaxzoo.utils.checksums import json_sha256

TASKS = ("capacity", "overwrite", "track")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShapeConfig(TaskConfig):
    """Another task, with tokens padded at the end to `length` and only its last `n_asked` questions, so that all tasks
    of the benchmark share the compiled programs of a model."""

    task: TaskConfig
    n_asked: PositiveInt

    @property
    def slices(self) -> Mapping[str, int]:
        return self.task.slices

    def split_key(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> PRNGKeyArray:
        return self.task.split_key(key, odd)

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        batch = self.task.example(key, odd)
        assert batch.positions is not None
        positions, targets = batch.positions[-self.n_asked :], batch.targets[-self.n_asked :]
        missing = (0, self.n_asked - targets.shape[0])
        return Batch(
            tokens=jnp.pad(batch.tokens, (0, self.length - self.task.length)),
            positions=jnp.pad(positions, missing),
            targets=jnp.pad(targets, missing, constant_values=UNLABELLED),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """Sizes of the benchmark."""

    name: str
    """Version, which every row names."""
    d_model: int = 64
    """Model width."""
    vocab_size: int = 512
    """Token ids of the model and of the recall tasks."""
    length: int = 128
    """Tokens of an example, and capacity at which growing states are measured."""
    sizes: tuple[int, ...] = (1024, 4096, 16384)
    """Bytes of float32 state of one sequence in the mixer's layer; each size has its own learning rate."""
    tolerance: float = 0.2
    """Largest relative difference of a state from a size."""
    tuned_size: int = 4096
    """Size at which overwrite and track are trained, at its learning rate."""
    pairs: tuple[int, ...] = (4, 8, 16, 32)
    """capacity: key-value pairs of the examples."""
    overwritten_pairs: tuple[int, ...] = (4, 8, 16, 24)
    """overwrite: pairs of the examples, half of which get a second value."""
    track_lengths: tuple[int, int] = (32, 128)
    """track: moves in training, and moves of the longer examples, whose last places are scored."""
    steps: int = 2000
    batch_size: int = 32
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 2e-2)
    """Learning rates; all are trained for half of the steps, and the best one goes on."""
    rate_seeds: int = 2
    """Number of seeds with which the rates are compared."""
    seeds: tuple[int, ...] = (0, 1, 2)
    valid_examples: int = 256
    """Examples of each validation set."""
    eval_every: int = 250
    """Steps between two validations."""
    solved: float = 0.99
    """Mean accuracy at which training stops; such a run has solved its task."""
    init_std: float = 0.1
    """Standard deviation of the mixer's projections."""

    @property
    def digest(self) -> str:
        """SHA-256 of all sizes."""
        return json_sha256(dataclasses.asdict(self))

    @property
    def model(self) -> Inherited:
        """Values of the model that a mixer's config inherits."""
        std = self.init_std
        return Inherited(d_model=self.d_model, max_length=self.length, init_std=std, out_init_std=std)

    @property
    def half(self) -> int:
        """Step at which the rates are compared."""
        return self.steps // 2

    def n_asked(self, number: int) -> int:
        """Returns the number of questions of an example with so many pairs, or of this length."""
        return min(number, max(self.pairs))

    def fits(self, state_bytes: int, target: int) -> bool:
        """Whether a state has a size within the tolerance."""
        return abs(state_bytes - target) <= self.tolerance * target

    def tuned(self, targets: Sequence[int]) -> int:
        """Returns the size of a mixer at which overwrite and track are trained."""
        return min(targets, key=lambda target: abs(target - self.tuned_size))

    def cells(self, targets: Sequence[int]) -> list[tuple[str, int]]:
        """Returns the tasks and sizes of a row."""
        return [("capacity", target) for target in targets] + [(task, self.tuned(targets)) for task in TASKS[1:]]

    def asked(self, task: str) -> tuple[int, ...]:
        """Returns the numbers of pairs, or the lengths, of the validation sets."""
        return {"capacity": self.pairs, "overwrite": self.overwritten_pairs, "track": self.track_lengths}[task]

    def data(self, task: str) -> RecallDataConfig:
        """Returns training mixture and validation sets of a task."""
        sizes = {"vocab_size": self.vocab_size, "length": self.length}
        if task == "track":
            found: list[TaskConfig] = [permutations.preset(3, length) for length in self.track_lengths]
        elif task == "capacity":
            found = [mqar.paper(self.length, n, vocab_size=self.vocab_size) for n in self.pairs]
        else:
            found = [
                ForgettingMQARConfig(**sizes, n_pairs=n, n_updates=n // 2, fillers="zero")
                for n in self.overwritten_pairs
            ]
        asked = [OneShapeConfig(**sizes, task=each, n_asked=max(self.pairs)) for each in found]
        learned = asked[:1] if task == "track" else asked
        n_examples = self.batch_size * -(-self.steps // len(learned))
        return RecallDataConfig(
            train=tuple(Examples(task=each, n_examples=n_examples) for each in learned),
            valid=tuple(Examples(task=each, n_examples=self.valid_examples) for each in asked),
        )

    def run(self, mixer: MixerConfig, task: str) -> RunConfig:
        """Returns the config of the runs of a cell, without rate and seed."""
        return RunConfig(
            model=LanguageModelConfig(
                pattern=(BaseConvConfig(n_taps=3), dataclasses.replace(mixer, init_std=self.init_std)),
                d_model=self.d_model,
                n_layers=2,
                vocab_size=self.vocab_size,
                max_length=self.length,
                mlp="none",
            ),
            data=self.data(task),
            optimizer=OptimizerConfig(b2=0.95, decay_embeddings=False),
            train=TrainConfig(steps=self.steps, batch_size=self.batch_size, valid_batch_size=self.batch_size),
        )

    def is_solved(self, accuracy: Mapping[str, float]) -> bool:
        """Whether accuracies, by number of pairs or length, end the training."""
        return bool(accuracy) and statistics.mean(accuracy.values()) >= self.solved

    def score(self, task: str, accuracy: Mapping[str, float]) -> float:
        """Returns the score of a run: pairs recalled, the area under accuracy against the number of pairs from 0 on
        (capacity, overwrite), or the accuracy at the longer length (track).

        Args:
          task: name of the task.
          accuracy: accuracies by number of pairs or by length, as text; empty if the run has diverged.
        """
        if not accuracy:
            return 0.0
        if task == "track":
            return accuracy[str(self.track_lengths[-1])]
        points = [(0, 1.0), *((n, accuracy[str(n)]) for n in self.asked(task))]
        return sum((m - n) * (a + b) / 2 for (n, a), (m, b) in itertools.pairwise(points))


V1 = Protocol(name="v1")
"""Frozen."""
SMOKE = Protocol(
    name="smoke",
    d_model=16,
    vocab_size=64,
    length=32,
    sizes=(1024,),
    tuned_size=1024,
    pairs=(8,),
    overwritten_pairs=(4,),
    track_lengths=(8, 32),
    steps=4,
    batch_size=8,
    rates=(3e-3, 1e-2),
    rate_seeds=1,
    seeds=(0,),
    valid_examples=16,
    eval_every=2,
)
"""Shows that everything runs; its numbers mean nothing."""
PROTOCOLS: Mapping[str, Protocol] = {each.name: each for each in (V1, SMOKE)}


def find_protocol(name: str) -> Protocol:
    """Returns a protocol by name. Raises `ValueError`."""
    if name not in PROTOCOLS:
        raise ValueError(f"protocol={name!r} must be one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
