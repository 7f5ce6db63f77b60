"""CAT's Theorem 3, both constructions, reading their own words: no training, no error."""

import numpy as np
import pytest

from experiments.theory.one_layer import set_taps
from experiments.theory.selective_copy import copy_embeddings, decay_copy_model, position_copy_model
from jaxzoo.generation.generate import generate
from jaxzoo.generation.sampling import Sampling
from jaxzoo.tasks.selective_copy import SelectiveCopyConfig
from tests.experiments.theory.recall import likeliest

MODELS = {"decay": decay_copy_model, "positions": position_copy_model}


def task_of(length, n_signals, n_signal_tokens=32):
    return SelectiveCopyConfig(
        vocab_size=9 + n_signal_tokens, n_noise=8, length=length + n_signals, n_signals=n_signals
    )


def spoken(task, model, *, n, seed=0):
    """Share of rows that the model copies without an error, from the prompt alone."""
    batch = task.labelled(seed, np.arange(n))
    prompts = np.asarray(batch.tokens)[:, : task.prompt_length + 1]
    words = generate(model, list(prompts), max_tokens=task.n_signals, sampling=Sampling(temperature=0.0))
    return np.mean([np.array_equal(row, own) for row, own in zip(words, np.asarray(batch.targets), strict=True)])


def told(task, model, *, n, seed=0):
    """Share of signals that the model knows behind the true ones."""
    batch = task.labelled(seed, np.arange(n))
    return (likeliest(model, batch.tokens, batch.positions) == batch.targets).mean()


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("length", "n_signals"),
    [(32, 32), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((40, 2), (300, 24)))],
)
def test_copies_by_itself(name, length, n_signals):
    """Kills a said word that is said again, an order of the last signals first, a filter off by one, noise that wins,
    a prompt of signals alone that fails, and a stream that forgets what a filter reaches."""
    task = task_of(length, n_signals)
    model = MODELS[name](task)
    assert spoken(task, model, n=8) == 1
    assert told(task, model, n=8, seed=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_copies_4096_tokens(name):
    """Kills scores that float32 rounds together on long sequences: 64 signals in 4032 tokens."""
    task = task_of(4032, 64, 64)
    assert told(task, MODELS[name](task), n=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_copies_4096_tokens_by_itself(name):
    """Kills the same, and a stream that differs from it; and many signals: 1024 in 3072 tokens."""
    task = task_of(4032, 64, 64)
    model = MODELS[name](task)
    for seed in range(4):
        assert spoken(task, model, n=2, seed=seed) == 1
    many = task_of(3072, 1024, 1024)
    assert told(many, MODELS[name](many), n=1) == 1


def test_embeddings_are_the_theorems():
    """Kills more channels than |S| + 3, another length than 1, and signals that are closer than 1."""
    task = task_of(40, 4, 6)
    embeddings = copy_embeddings(task)
    assert embeddings.shape == (15, 9)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1)
    signals = embeddings[9:]
    distances = np.linalg.norm(signals[:, None] - signals[None], axis=-1)[~np.eye(6, dtype=bool)]
    np.testing.assert_allclose(distances, 1)


@pytest.mark.slow
def test_filters_that_fail():
    """Kills a test that passes anyway: no decay in float32, a decay that grows, a filter shorter than what was said,
    and, with fewer signals than taps, flat taps, for which the end of the prompt is as said as the words."""
    task = task_of(40, 12)
    decayed, short = decay_copy_model(task), position_copy_model(task)
    assert told(task, decay_copy_model(task, rho=1 - 2.0**-32), n=16) < 0.6
    set_taps(decayed.stacks[0].blocks[0].mixer, "queries", (1 + 1 / 53) ** (np.arange(53.0) - 53))
    assert told(task, decayed, n=16) < 0.5
    layer = short.stacks[0].blocks[0].mixer
    fewer = task_of(48, 4)
    assert told(fewer, short, n=16) == 1
    set_taps(layer, "queries", np.ones(12))
    assert told(task, short, n=16) == 1
    assert told(fewer, short, n=16) < 0.95
    set_taps(layer, "queries", np.maximum(1 - np.arange(12) / 6, 0))
    assert told(task, short, n=16) < 0.8


@pytest.mark.full
def test_a_decay_of_its_own():
    """Kills a bound that holds for 1 - 1 / L alone: 1/2 is good for 90 tokens, and refused for 110."""
    task = task_of(80, 10)
    assert told(task, decay_copy_model(task, rho=0.5), n=16) == 1
    with pytest.raises(ValueError, match=r"rho=0.5 must be in \(0, 1\), and rho\^111 at least 1e-30"):
        decay_copy_model(task_of(100, 10), rho=0.5)
    with pytest.raises(ValueError, match=r"rho=1.5 must be in \(0, 1\)"):
        decay_copy_model(task, rho=1.5)


@pytest.mark.full
def test_what_float32_leaves_of_the_gap():
    """Kills the docstring's numbers: the scores of neighbours, one rounded product after the other, in units of the gap
    that they should have."""
    f32 = np.float32

    def left(length):
        rho = 1 - 1 / length
        queries = (rho ** np.arange(length)).astype(f32) * f32(np.sqrt(1 / 2))
        decay = queries * f32(np.sqrt(2) / ((1 - rho) * rho ** (length - 2)))
        sines = np.sin(np.pi / 4 * np.arange(length) / length)
        places = sines.astype(f32) * f32(-1 / np.diff(sines).min())
        return -np.diff(decay[1:]).max(), -np.diff(places).max()

    assert min(left(2**19)) > 0.85
    assert left(2**22)[0] < 0.1
    assert left(2**23)[1] < 0.1
