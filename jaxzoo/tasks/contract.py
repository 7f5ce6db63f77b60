"""`check_task`: checks the contract of `jaxzoo.tasks.base`, also for tasks defined elsewhere.

    from jaxzoo.testing import check_task

    def test_my_task():
        check_task(MyTask(length=6), oracle)

The oracle solves the task from the tokens, without the targets, and shares no code with the generator.
Each `check_*` function raises AssertionError for one invariant.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks.base import Split, TaskConfig

Oracle = Callable[[np.ndarray, TaskConfig], np.ndarray]
"""`oracle(tokens, config)` returns the answer at each position `(b, t)`, or -100."""

N = 2000
"""Number of examples of a batch, the same in all checks of a config, so that it is compiled once."""


class MadeExamples(NamedTuple):
    tokens: np.ndarray
    positions: np.ndarray
    targets: np.ndarray


@functools.cache
def make(config: TaskConfig, n: int = N, seed: int = 0, split: Split = "train") -> MadeExamples:
    """Makes the first `n` examples; if the task names no positions, all are labelled."""
    return _as_arrays(config.labelled(seed, np.arange(n), split))


def check_task(
    config: TaskConfig, oracle: Oracle | None = None, *, chance: float | None = None, n_examples: int = N
) -> None:
    """Checks that examples are pure functions of their number, the oracle is always right, and the splits are disjoint.
    `config` must be small, so that a batch of `n_examples` has many of all possible examples and overlaps are
    found. `oracle` None: the function `oracle` of the config's module. `chance` is the accuracy of shuffled labels;
    None: one over the number of labels. Raises `AssertionError` with the invariant and the first example that breaks
    it."""
    if oracle is None:
        oracle = getattr(sys.modules[type(config).__module__], "oracle", None)
        assert oracle, f"{type(config).__name__}: pass an oracle, or define `oracle` next to the config"
    check_shapes(config, n_examples)
    check_oracle(config, oracle, n_examples)
    check_chance(config, chance, n_examples)
    check_pure(config, n_examples)
    check_disjoint(config, n_examples)


def check_shapes(config: TaskConfig, n: int = N) -> None:
    """Checks that examples have the config's length and vocabulary, int32, and a legend and slices."""
    name = type(config).__name__
    for split in ("train", "test"):
        made = make(config, n, split=split)
        for field, array in made._asdict().items():
            assert array.dtype == np.int32, f"{name}: {field} of {split} must be int32, got {array.dtype}"
        expected = (n, config.length)
        assert made.tokens.shape == expected, f"{name}: tokens must be of shape {expected}, got {made.tokens.shape}"
        inside = (made.tokens >= 0) & (made.tokens < config.vocab_size)
        row, column = map(int, np.unravel_index(np.argmin(inside), inside.shape))
        place = f"{split} example {row}, position {column}"
        assert inside.all(), f"{name}: {place}: the token must be in [0, {config.vocab_size})"
        asked = (made.targets != UNLABELLED).any(1)
        assert asked.all(), f"{name}: {split} example {int(np.argmin(asked))} asks nothing; give it a target"
    assert config.legend, f"{name}.legend must not be empty"
    whole = all(isinstance(value, int) for value in config.slices.values())
    assert whole, f"{name}.slices must have whole numbers as values, got {dict(config.slices)}"


def check_oracle(config: TaskConfig, oracle: Oracle, n: int = N) -> None:
    """Checks that the oracle gives every target."""
    for split in ("train", "test"):
        tokens, positions, targets = make(config, n, split=split)
        said = np.take_along_axis(np.asarray(oracle(tokens, config)), positions, axis=1)
        wrong = (targets != UNLABELLED) & (said != targets)
        if wrong.any():
            row, column = map(int, np.argwhere(wrong)[0])
            place = f"{split} example {row}, position {positions[row, column]}"
            answers = f"the target is {targets[row, column]}, the oracle says {said[row, column]}"
            raise AssertionError(f"{type(config).__name__}: {place}: {answers}; tokens {tokens[row].tolist()[:64]}")


def check_chance(config: TaskConfig, chance: float | None = None, n: int = N) -> None:
    """Checks that shuffled labels score chance: no answer is right for most questions."""
    targets = make(config, n, split="test").targets
    targets = targets[targets != UNLABELLED]
    n_labels = len(np.unique(targets))
    assert n_labels > 1, f"{type(config).__name__}: every question has the answer {targets.flat[0]}"
    expected = 1 / n_labels if chance is None else chance
    hits = float((targets == np.random.default_rng(0).permutation(targets)).mean())
    spread = 5 * math.sqrt(expected / targets.size)
    assert abs(hits - expected) < spread, (
        f"{type(config).__name__}: shuffled labels are right in {hits:.3f} of the questions, {expected:.3f} expected "
        f"with {n_labels} labels; make them equally likely, or pass chance="
    )


def check_pure(config: TaskConfig, n: int = N) -> None:
    """Checks that an example depends on config, split, seed and number only: not on its batch, nor on the kind of
    seed."""
    name = type(config).__name__
    whole = make(config, n)
    order = np.random.default_rng(1).permutation(n)
    others = np.where(np.arange(n) % 2 == 0, order, order + 10_000)
    part = _as_arrays(config.labelled(jax.random.key(0, impl="threefry2x32"), others))
    for field, of_batch, again in zip(MadeExamples._fields, whole, part, strict=True):
        same = (of_batch[order[::2]] == again[::2]).all(1)
        number = int(order[::2][np.argmin(same)])
        assert same.all(), f"{name}: {field} of example {number} differ with the other examples of its batch"
    changed = (make(config, n, seed=1).tokens != whole.tokens).any(1).mean()
    assert changed > 0.5, f"{name}: only {changed:.0%} of the examples change with the seed"


def check_disjoint(config: TaskConfig, n: int = N) -> None:
    train = {row.tobytes(): i for i, row in enumerate(make(config, n).tokens)}
    for i, row in enumerate(make(config, n, split="test").tokens):
        if (twin := train.get(row.tobytes())) is not None:
            name = type(config).__name__
            raise AssertionError(f"{name}: test example {i} is train example {twin}: {row.tolist()[:64]}")


def _as_arrays(batch) -> MadeExamples:
    tokens = np.asarray(batch.tokens)
    targets = np.asarray(batch.targets)
    everywhere = np.broadcast_to(np.arange(targets.shape[1], dtype=np.int32), targets.shape)
    return MadeExamples(tokens, everywhere if batch.positions is None else np.asarray(batch.positions), targets)
