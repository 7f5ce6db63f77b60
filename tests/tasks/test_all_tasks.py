"""The contract of all tasks. Kills: a label that the tokens do not determine, an example in both splits."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import jax
import numpy as np
import pytest

import jaxzoo.tasks
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.mad import CompressionConfig
from jaxzoo.tasks.ngram_recall import NGramRecallConfig
from jaxzoo.tasks.text_recall import NeedleConfig, PhoneBookConfig, TextTask, VariableTrackingConfig
from jaxzoo.testing import check_task
from tests.tasks.examples import SMALL, N, make, parametrize_small
from tests.tasks.oracles import oracle


def test_every_task_is_tested():
    """Kills: a task that no test of this file has seen."""
    names = [module.name for module in pkgutil.iter_modules(jaxzoo.tasks.__path__) if module.name != "__main__"]
    modules = [importlib.import_module(f"jaxzoo.tasks.{name}") for name in names]
    found = {c for module in modules for c in vars(module).values() if inspect.isclass(c) and issubclass(c, TaskConfig)}
    assert {c for c in found if not inspect.isabstract(c)} == {type(config) for config in SMALL.values()}


@parametrize_small()
def test_every_task_keeps_the_contract(config):
    """Kills: a label that reading cannot give, a target at another position, a query without a label, an accuracy that
    is high for any labels; examples that depend on their batch or the kind of seed; a test set that was trained on.
    Another seed's training set shares examples with the first one, so that an overlap would show."""
    n = n_of(config)
    check_task(config, oracle, chance=chance(config), n_examples=n)
    for split in ("train", "test"):
        tokens, _, targets = make(config, n, 0, split)
        if getattr(config, "fillers", "zero") != "any":
            assert (oracle(tokens, config) != UNLABELLED).sum() == (targets != UNLABELLED).sum()
    train, again, test = (distinct(config, make(config, n_of(config), seed, split)) for seed, split in SETS)
    assert train & again or isinstance(config, TextTask)
    assert not train & test
    assert len(test) > 15


SETS = (0, "train"), (1, "train"), (0, "test")


def n_of(config) -> int:
    """Number of examples per batch; texts are made one by one."""
    return 80 if isinstance(config, TextTask) else N


def chance(config) -> float | None:
    """Accuracy of shuffled labels; "no match" is one more label, and more frequent than the values, and so is the token
    at the end of each example that is compressed.

    Of texts, the sum of the squared shares of all bytes: spaces, dashes, commas, letters and digits, the first no 0.
    """
    match config:
        case CompressionConfig():
            noise = config.frac_noise**2 / max(config.noise_vocab_size, 1)
            body = (1 - config.frac_noise) ** 2 / config.n_plain + noise
            return (1 + (config.length - 1) ** 2 * body) / config.length**2
        case PhoneBookConfig():
            return (1 + 4 + 10) / 13**2
        case NeedleConfig():
            n = config.num_needle_q * config.num_needle_v
            total, digits = 9 * n - 1, 9 * (0.6 + 1 / 9) ** 2 + 0.6**2
            return (n**2 + (n - 1) ** 2 + n**2 * digits) / total**2
        case VariableTrackingConfig():
            return (1 + 25 / 26) / 6**2
    if not isinstance(config, NGramRecallConfig) or not config.n_unmatched:
        return None
    unmatched = config.n_unmatched / config.asked
    return unmatched**2 + (1 - unmatched) ** 2 / config.n_values


def distinct(config, examples) -> set[bytes]:
    """Keys of examples that determine the split: tokens, or pairs and positions where fillers are separate."""
    tokens, positions, _ = examples
    if getattr(config, "fillers", "zero") != "zero":
        tokens = np.concatenate([tokens[:, : 2 * config.n_pairs], positions], axis=1)
    return {row.tobytes() for row in tokens}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Echo(TaskConfig):
    """Task that asks for the first token at the last position, with a named defect."""

    vocab_size: int = 40
    length: int = 3
    defect: str = ""

    @property
    def slices(self):
        return {"length": self.length if self.defect != "slices" else 0.5}

    def generate(self, key, numbers, split):
        n, defect = len(numbers), self.defect
        seed = 0 if defect == "seed" else int(jax.random.key_data(key)[-1])
        numbers = np.asarray(numbers, np.int64)
        numbers = numbers + numbers[0] if defect == "batch" else numbers
        first = 2 * ((numbers * 7919 + 11 * seed) % (self.vocab_size // 2))
        first = first + (split == "test") * (defect != "split")
        first = first * 0 + (split == "test") if defect == "chance" else first
        first = first % 2 + 2 * (first < 4) if defect == "uneven" else first
        tokens = np.zeros((n, self.length), np.int32)
        tokens[:, 0] = first + (100 if defect == "vocabulary" else 0)
        targets = np.full((n, 1), UNLABELLED) if defect == "silent" else first[:, None] + (defect == "target")
        positions = np.full((n, 1), self.length - 1, np.int32)
        return Batch(
            tokens=tokens, positions=positions, targets=targets.astype(np.int64 if defect == "dtype" else "i4")
        )


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("", ""),
        ("slices", "Echo.slices must have whole numbers"),
        ("vocabulary", r"train example 0, position 0: the token must be in \[0, 40\)"),
        ("silent", "train example 0 asks nothing"),
        ("dtype", "targets of train must be int32, got int64"),
        ("target", "train example 0, position 2: the target is 1, the oracle says 0; tokens"),
        ("chance", "every question has the answer 1"),
        ("uneven", "shuffled labels are right in 0.[89]"),
        ("batch", "tokens of example .* differ with the other examples of its batch"),
        ("seed", "only 0% of the examples change with the seed"),
        ("split", "test example 0 is train example"),
    ],
)
def test_each_defect_has_its_failure(defect, message):
    """Kills: a check that finds nothing, or names another defect than that of the task."""

    def oracle(tokens, config):
        return np.repeat(tokens[:, :1], config.length, axis=1)

    if not message:
        check_task(Echo(), oracle, chance=1 / 20)
        return
    with pytest.raises(AssertionError) as error:
        check_task(Echo(defect=defect), oracle, chance=None)
    assert re.search(message, str(error.value)), str(error.value)
