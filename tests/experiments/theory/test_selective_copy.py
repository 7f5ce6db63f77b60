"""CAT, Theorem 3. Kills: a signal that is copied twice or in another order."""

import numpy as np
import pytest

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
    """Share of signals that the model predicts after the true previous ones."""
    batch = task.labelled(seed, np.arange(n))
    return (likeliest(model, batch.tokens, batch.positions) == batch.targets).mean()


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("length", "n_signals"),
    [(32, 32), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((40, 2), (300, 24)))],
)
def test_copies_by_itself(name, length, n_signals):
    """Kills: a said word that is said again, an order of the last signals first, a filter off by one, noise that wins,
    a prompt of signals alone that fails, and a stream that forgets what a filter reaches."""
    task = task_of(length, n_signals)
    model = MODELS[name](task)
    assert spoken(task, model, n=8) == 1
    assert told(task, model, n=8, seed=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_copies_4096_tokens(name):
    """Kills: scores that float32 rounds together on long sequences: 64 signals in 4032 tokens."""
    task = task_of(4032, 64, 64)
    assert told(task, MODELS[name](task), n=1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_copies_4096_tokens_by_itself(name):
    """Kills: the same, and a stream that differs from it; and many signals: 1024 in 3072 tokens."""
    task = task_of(4032, 64, 64)
    model = MODELS[name](task)
    for seed in range(4):
        assert spoken(task, model, n=2, seed=seed) == 1
    many = task_of(3072, 1024, 1024)
    assert told(many, MODELS[name](many), n=1) == 1


def test_embeddings_are_the_theorems():
    """Kills: more channels than |S| + 3, another length than 1, and signals that are closer than 1."""
    task = task_of(40, 4, 6)
    embeddings = copy_embeddings(task)
    assert embeddings.shape == (15, 9)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1)
    signals = embeddings[9:]
    distances = np.linalg.norm(signals[:, None] - signals[None], axis=-1)[~np.eye(6, dtype=bool)]
    np.testing.assert_allclose(distances, 1)
