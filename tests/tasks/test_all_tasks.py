"""What holds for every task: an oracle that only reads, chance, pure functions of the number, and disjoint splits."""

import importlib
import inspect
import math
import pkgutil

import jax
import numpy as np

import jaxzoo.tasks
from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.tasks.ngram_recall import NO_MATCH, NGramRecallConfig
from jaxzoo.tasks.permutations import PermutationsConfig
from tests.tasks.examples import SMALL, N, make, parametrize_small


def oracle_of(config: TaskConfig):
    return importlib.import_module(type(config).__module__).oracle


def test_every_task_is_tested():
    """Kills a task that no test of this file has seen."""
    names = [module.name for module in pkgutil.iter_modules(jaxzoo.tasks.__path__) if module.name != "__main__"]
    modules = [importlib.import_module(f"jaxzoo.tasks.{name}") for name in names]
    found = {c for module in modules for c in vars(module).values() if inspect.isclass(c) and issubclass(c, TaskConfig)}
    assert {c for c in found if not inspect.isabstract(c)} == {type(config) for config in SMALL.values()}


@parametrize_small()
def test_the_oracle_is_right_and_shuffled_labels_are_chance(config):
    """Kills: a label that reading cannot give, a target at another position, a query without a label, and an accuracy
    that is high for any labels."""
    for split in ("train", "test"):
        tokens, positions, targets = make(config, split=split)
        assert tokens.shape == (N, config.length)
        assert tokens.dtype == positions.dtype == targets.dtype == np.int32
        assert ((tokens >= 0) & (tokens < config.vocab_size)).all()
        said = oracle_of(config)(tokens, config)
        np.testing.assert_array_equal(np.take_along_axis(said, positions, axis=1), targets)
        if getattr(config, "fillers", "zero") != "any":
            assert (said != UNLABELLED).sum() == (targets != UNLABELLED).sum()
        has_no_match = isinstance(config, NGramRecallConfig)
        values = targets[(targets != UNLABELLED) & ~(has_no_match & (targets == NO_MATCH))]
        n_values = getattr(config, "n_values", getattr(config, "n_signal_tokens", 2))
        n_values = config.vocab_size if isinstance(config, PermutationsConfig) else n_values
        shuffled = np.random.default_rng(0).permutation(values)
        assert abs((values == shuffled).mean() - 1 / n_values) < 5 * math.sqrt(1 / n_values / values.size)


@parametrize_small()
def test_an_example_is_a_function_of_config_split_seed_and_number(config):
    """Kills: examples that depend on their place in a batch, its other examples or the kind of seed; a seed without
    effect; a test set that was trained on. Another seed's training set shares examples with the first one, so that an
    overlap would show."""
    whole, order = make(config), np.random.default_rng(1).permutation(N)
    others = np.where(np.arange(N) % 2 == 0, order, order + 10_000)
    part = config.labelled(jax.random.key(0, impl="threefry2x32"), others)
    for all_of_them, some in zip(whole, (part.tokens, part.positions, part.targets), strict=True):
        np.testing.assert_array_equal(all_of_them[order[::2]], some[::2])
    other_seed = make(config, seed=1)
    assert (other_seed.tokens != whole.tokens).any(1).mean() > 0.5

    train, again, test = (distinct(config, each) for each in (whole, other_seed, make(config, split="test")))
    assert train & again
    assert not train & test
    assert len(test) > 15


def distinct(config, examples) -> set[bytes]:
    """Examples by what their split decides: tokens, or pairs and positions where fillers are drawn apart."""
    tokens, positions, _ = examples
    if getattr(config, "fillers", "zero") != "zero":
        tokens = np.concatenate([tokens[:, : 2 * config.n_pairs], positions], axis=1)
    return {row.tobytes() for row in tokens}
