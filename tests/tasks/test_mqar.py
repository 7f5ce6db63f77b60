"""MQAR against loops, enumeration and NumPy. Kills: other examples than the published ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.tasks import mqar
from jaxzoo.tasks.base import Split
from jaxzoo.tasks.mqar import MQARConfig
from tests.tasks.examples import SMALL, N, assert_law, assert_refused, assert_same_law, make
from tests.tasks.oracles import oracle

CONFIGS = {
    **{name: config for name, config in SMALL.items() if name.startswith("mqar")},
    "paper_random": mqar.paper(26, 3, vocab_size=30, fillers="random"),
    "full": mqar.release(32, 8, vocab_size=33, fillers="random"),
    "literal_full": mqar.literal(32, 8, vocab_size=33),
}
parametrize_configs = pytest.mark.parametrize(
    "config", [pytest.param(c, id=name, marks=[] if name in SMALL else pytest.mark.full) for name, c in CONFIGS.items()]
)


@functools.cache
def dense(config: MQARConfig, n: int = N, split: Split = "train") -> tuple[np.ndarray, np.ndarray]:
    """Tokens and one target per position."""
    tokens, positions, targets = make(config, n, split=split)
    spread = np.full(tokens.shape, -100, np.int32)
    np.put_along_axis(spread, positions, targets, axis=1)
    return tokens, spread


def is_odd(tokens: np.ndarray, targets: np.ndarray, config: MQARConfig) -> bool:
    """Parity that separates the splits, by loops over one example."""
    n_pairs, width = config.n_pairs, 2 if config.places == "slots" else 1
    keys, values = tokens[: 2 * n_pairs : 2], tokens[1 : 2 * n_pairs : 2]
    inversions = sum(int(a > b) for i, a in enumerate(keys) for b in keys[i + 1 :])
    slot = (int(np.flatnonzero(targets >= 0)[0]) - 2) // width if n_pairs == 1 else 0
    return (inversions + int(keys.sum()) + int(values.sum()) + slot) % 2 == 1


@parametrize_configs
def test_layout_of_every_example(config):
    """Kills: misplaced queries, targets shifted by one, inserted values, labels of the wrong pair, wrong
    ranges,
    labels that reading cannot give; a swap of keys without their values, a swap in the wrong direction, and a missed
    neighbour value."""
    for split in ("train", "test"):
        n, half = config.n_pairs, config.vocab_size // 2
        tokens, targets = (part[:300] for part in dense(config, split=split))
        assert tokens.shape == targets.shape == (300, config.length)
        assert tokens.dtype == targets.dtype == np.int32
        said = oracle(tokens, config)
        np.testing.assert_array_equal(said[targets != -100], targets[targets != -100])
        for example, labels in zip(tokens.tolist(), targets.tolist(), strict=True):
            pairs = dict(zip(example[: 2 * n : 2], example[1 : 2 * n : 2], strict=True))
            assert len(pairs) == n
            assert all(1 <= key < half <= value < config.vocab_size for key, value in pairs.items())
            asked = [t for t, label in enumerate(labels) if label != -100]
            assert all(t >= config.context_length and (t % 2 == 0 or config.places == "anywhere") for t in asked)
            assert sorted(example[t] for t in asked) == sorted(pairs)
            assert all(labels[t] == pairs[example[t]] for t in asked)
            if config.distinct_values:
                assert len(set(pairs.values())) == n
            later = range(config.context_length, len(example))
            fillers = [example[t] for t in later if t not in asked]
            assert all(0 <= token < config.vocab_size for token in fillers)
            if config.fillers == "zero":
                assert not any(fillers)
            if config.fillers == "random":
                assert not set(fillers) & set(pairs)
        kinds = {is_odd(*example, config) for example in zip(tokens, targets, strict=True)}
        assert kinds == {split == "test"}


def test_oracle_reads_the_worked_example():
    """Kills: an oracle that echoes the generator: a sequence made by hand, with a filler that equals a
    value."""
    config = mqar.paper(16, 2, vocab_size=64)
    tokens = np.array([[3, 54, 30, 59, 30, 0, 3, 54] + [0] * 8, [30, 33, 3, 33, 0, 0, 3, 0] + [0] * 6 + [30, 9]])
    expected = np.full((2, 16), -100)
    expected[0, [4, 6]], expected[1, [6, 14]] = [59, 54], [33, 33]
    np.testing.assert_array_equal(oracle(tokens, config), expected)


def test_gaps_follow_the_power_law_in_the_order_of_the_pairs():
    """Kills: an exponent off by one, a law that starts at i = 0, and slots that are sorted or shuffled over
    pairs."""
    config, n_slots, n_draws = mqar.paper(14, 2, vocab_size=32), 5, 12_000
    slots = (make(config, n_draws, 5).positions - 4) // 2
    law = np.arange(1.0, n_slots + 1) ** (config.power - 1)
    assert_law(np.bincount(slots[:, 0], minlength=n_slots), law)
    p, rng = law / law.sum(), np.random.default_rng(1)
    reference = np.stack([rng.choice(n_slots, 2, replace=False, p=p) for _ in range(n_draws)])
    assert_same_law(*(np.bincount(drawn[:, 1], minlength=n_slots) for drawn in (slots, reference)))


def test_presets_are_those_of_paper_and_release():
    """Kills: a mistyped exponent, values drawn in the way of the other, and places of the wrong kind."""
    told = {preset.__name__: preset(64, 8) for preset in (mqar.paper, mqar.literal, mqar.release)}
    assert {name: (c.power, c.places, c.distinct_values, c.fillers) for name, c in told.items()} == {
        "paper": (0.1, "slots", False, "zero"),
        "literal": (0.1, "anywhere", False, "zero"),
        "release": (0.01, "slots", True, "zero"),
    }


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("n_pairs", [pytest.param(1, marks=pytest.mark.full), 2])
def test_split_leaves_the_law_of_keys_and_values(split, n_pairs):
    """Kills: a split that sorts the keys, or ties a value to its key, in one of the two sets."""
    config = mqar.paper(14, n_pairs, vocab_size=34 if n_pairs == 1 else 32)
    tokens = make(config, 12_000, 5, split).tokens
    keys, values = tokens[:, : 2 * n_pairs : 2], tokens[:, 1 : 2 * n_pairs : 2]
    for pair in range(n_pairs):
        assert_law(np.bincount(keys[:, pair], minlength=config.n_keys + 1)[1:], np.ones(config.n_keys))
        if n_pairs > 1:
            assert_law(np.bincount(values[:, pair])[config.first_value :], np.ones(config.n_values))
            same_parity = (keys[:, pair] + values[:, pair]) % 2 == 0
            assert abs(same_parity.mean() - 0.5) < 0.025
    for left in range(n_pairs - 1):
        assert abs((keys[:, left] < keys[:, left + 1]).mean() - 0.5) < 0.025
    if n_pairs > 1:
        assert abs((values[:, 0] == values[:, 1]).mean() - 1 / config.n_values) < 0.015


@pytest.mark.full
def test_example_depends_on_its_number_alone():
    """Kills: draws that depend on the batch: its size, its neighbours, the kind of numbers, jit or traced numbers."""
    config = mqar.release(26, 5, vocab_size=27, fillers="any")
    tokens = make(config, 35).tokens
    for numbers in (np.arange(7, 14), jnp.arange(7, 14, dtype=jnp.uint32), np.array([33, 4, 4, 19, 0, 34, 7])):
        np.testing.assert_array_equal(config.labelled(0, numbers).tokens, tokens[np.asarray(numbers)])
        np.testing.assert_array_equal(config.labelled(jax.random.key(0), numbers).tokens, tokens[np.asarray(numbers)])
    jitted = jax.jit(lambda numbers: config.labelled(0, numbers).tokens)
    np.testing.assert_array_equal(jitted(np.arange(21, 28)), tokens[21:28])


def test_traced_numbers_compile_once():
    """Kills: numbers that are baked into the program, one compilation a training step."""
    config, traces = mqar.paper(16, 2, vocab_size=64), []

    @jax.jit
    def step(seed_key, index):
        traces.append(index)
        return config.labelled(seed_key, 3 * index + jnp.arange(3)).tokens

    batches = [step(jax.random.key(seed), index) for seed in (0, 1) for index in (0, 1, 2)]
    assert len(traces) == 1
    assert len({np.asarray(batch).tobytes() for batch in batches}) == 6


def test_every_pass_shows_all_pairs_in_an_order_of_its_own():
    """Kills: a later pass that splits pairs, repeats the order of the first, or the same order in every example."""
    config = mqar.preset(32, 4, vocab_size=64, n_passes=3)
    shown = make(config, 200).tokens[:, : config.context_length].reshape(200, 3, 4, 2)
    orders = []
    for first, *later in shown.tolist():
        assert all(sorted(pairs) == sorted(first) for pairs in later)
        orders += [tuple(first.index(pair) for pair in pairs) for pairs in later]
    assert len(set(orders)) == 24
    assert mqar.preset(32, 4, vocab_size=64).slices.keys() == {"length", "pairs"}
    assert config.slices["passes"] == 3


@pytest.mark.full
def test_seeds_splits_and_geometries_draw_apart():
    """Kills: equal random bits under another seed, split or geometry: keys at equal places agree only by
    chance."""
    base = make(mqar.paper(64, 8), 200).tokens[:, :16:2]
    others = [
        make(mqar.paper(64, 8), 200, seed=1),
        make(mqar.paper(64, 8), 200, split="test"),
        make(mqar.paper(66, 8), 200),
        make(mqar.paper(64, 9), 200),
    ]
    for other in others:
        assert (other.tokens[:, :16:2] == base).mean() < 0.01


@pytest.mark.full
def test_fillers_are_uniform():
    """Kills: fillers from half the vocabulary, without 0, or drawn around the wrong example's keys."""
    for fillers in ("random", "any"):
        config = mqar.paper(16, 2, vocab_size=20, fillers=fillers)
        tokens, targets = dense(config, 4000)
        queries = np.arange(16)[None, :] >= 4
        counts = np.zeros(20)
        weights = np.zeros(20)
        for example, labels in zip(tokens, targets, strict=True):
            drawn = example[queries[0] & (labels == -100)]
            allowed = np.ones(20)
            if fillers == "random":
                allowed[example[[0, 2]]] = 0
            counts += np.bincount(drawn, minlength=20)
            weights += allowed / allowed.sum() * drawn.size
        assert_law(counts, weights)


def test_examples_stay_what_they_are():
    """Kills: a change of the random streams: published numbers must keep meaning the same examples."""
    found = mqar.release(12, 2, vocab_size=64, fillers="random").labelled(7, np.array([6, 7]))
    pinned = [[8, 40, 23, 57, 8, 56, 23, 19, 7, 46, 38, 30], [21, 40, 31, 42, 36, 59, 21, 7, 20, 60, 31, 53]]
    np.testing.assert_array_equal(found.tokens, pinned)
    answers = [
        dict(zip(*row, strict=True)) for row in zip(found.positions.tolist(), found.targets.tolist(), strict=True)
    ]
    assert answers == [{4: 40, 6: 57}, {6: 40, 10: 42}]


def test_config_errors():
    """Kills: a check that is missing or names the wrong field."""
    cases = [
        ({"n_pairs": 0}, "n_pairs=0 must be positive"),
        ({"length": 63}, "length=63 must be even"),
        ({"length": 30}, "length=30 must be at least 4 n_pairs=32; raise length or lower n_pairs"),
        ({"n_passes": 4}, "length=64 must be at least 10 n_pairs=80"),
        ({"vocab_size": 64}, "vocab_size=64 must exceed length=64"),
        ({"power": 0.0}, "power=0.0 must be positive"),
        ({"power": 23.0}, "power=23.0 must be smaller: in float32 some slots have probability 0"),
        ({"fillers": "noise"}, "fillers='noise' must be one of 'zero', 'random', 'any'"),
    ]
    assert_refused(MQARConfig, cases)


def test_generator_refuses_bad_numbers():
    """Kills: numbers of another shape or dtype, and a misspelt split that would be taken for train."""
    for numbers in (np.zeros((2, 2), np.int32), np.zeros(2, np.float32)):
        with pytest.raises(ValueError, match=r"MQARConfig.labelled: numbers of shape \(2.*must be"):
            MQARConfig().labelled(0, numbers)
    with pytest.raises(ValueError, match="split='valid' must be 'train' or 'test'"):
        MQARConfig().labelled(0, np.arange(2), "valid")
