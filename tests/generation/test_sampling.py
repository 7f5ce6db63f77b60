"""Draws against probabilities in float64. Kills: top-p of the wrong distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.generation.sampling import Sampling, knobs, sample

VOCAB = 11
N = 40_000


sample_once = jax.jit(lambda logits, keys, settings: sample(logits, keys, settings))
"""One program per number of rows."""


def some_logits(rows: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32)


def frequencies(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    keys = jax.random.split(jax.random.key(1), N)
    tokens = sample_once(np.repeat(logits, N, axis=0), keys, knobs(sampling))
    assert tokens.dtype == jnp.int32
    return np.bincount(tokens, minlength=VOCAB) / N


def expected(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Temperature, then the first k ranks, then the shortest beginning of them that reaches p: token by token."""
    scaled = logits[0].astype(np.float64) / sampling.temperature
    ranked = sorted(range(sampling.n_ids or VOCAB), key=lambda i: (-scaled[i], i))[: sampling.top_k or VOCAB]
    weights = {i: np.exp(scaled[i] - scaled.max()) for i in ranked}
    kept, mass = [], 0.0
    for i in ranked:
        kept.append(i)
        mass += weights[i] / sum(weights.values())
        if mass >= sampling.top_p:
            break
    result = np.zeros(VOCAB)
    result[kept] = [weights[i] for i in kept]
    return result / result.sum()


def test_draws_have_the_probabilities_of_the_definition():
    """Kills: top-p before the temperature or on the whole vocabulary instead of the top k, a beginning that stops
    short of p or goes one too far, ranks returned in place of tokens."""
    for sampling in [
        Sampling(),
        Sampling(temperature=3.0),
        Sampling(top_k=4),
        Sampling(top_p=0.7),
        Sampling(temperature=1.7, top_k=5, top_p=0.8),
        Sampling(temperature=0.4, top_k=100, top_p=0.999),
        Sampling(n_ids=4),
        Sampling(temperature=2.0, top_k=3, n_ids=6),
    ]:
        logits = some_logits()
        found, truth = frequencies(logits, sampling), expected(logits, sampling)
        assert np.all(found[truth == 0] == 0)
        np.testing.assert_allclose(found, truth, atol=4.5 * np.sqrt(0.25 / N))  # 4.5 standard deviations at most


def test_zero_temperature_is_argmax_and_so_are_its_limits():
    """Kills: a division by zero, an overflow at small temperatures, ties that go to the higher id."""
    logits, keys = some_logits(50), jax.random.split(jax.random.key(0), 50)
    logits[0, [3, 7]] = 9.0
    greedy = logits.argmax(-1)
    assert greedy[0] == 3
    for sampling in (Sampling(temperature=0), Sampling(temperature=0, top_k=3, top_p=0.1), Sampling(top_k=1)):
        np.testing.assert_array_equal(sample_once(logits, keys, knobs(sampling)), greedy)
    for sampling in (Sampling(temperature=1e-30), Sampling(temperature=1e-30, top_k=5)):
        np.testing.assert_array_equal(sample_once(logits, keys, knobs(sampling))[1:], greedy[1:])
    np.testing.assert_array_equal(sample_once(logits, keys, knobs(Sampling(top_p=1e-6))), greedy)
    few = sample_once(logits, keys, knobs(Sampling(temperature=0, n_ids=3)))
    np.testing.assert_array_equal(few, logits[:, :3].argmax(-1))


def test_a_draw_is_its_rows_own():
    """Kills: a draw that depends on the other rows, and one key for all of them."""
    logits, keys = np.repeat(some_logits(), 64, 0), jax.random.split(jax.random.key(3), 64)
    for sampling in (Sampling(), Sampling(top_k=6, top_p=0.95)):
        together = sample_once(logits, keys, knobs(sampling))
        assert len(set(together.tolist())) > 3
        alone = [int(sample_once(logits[:1], keys[i][None], knobs(sampling))[0]) for i in range(8)]
        assert alone == together[:8].tolist()


def test_what_a_sampling_refuses():
    """Kills: settings that would draw garbage or nothing."""
    for fields, message in [
        ({"temperature": -0.5}, r"^Sampling.temperature=-0.5 must not be negative$"),
        ({"temperature": float("nan")}, "Sampling.temperature=nan must be finite"),
        ({"temperature": float("inf")}, "Sampling.temperature=inf must be finite"),
        ({"top_k": -1}, "Sampling.top_k=-1 must not be negative"),
        ({"n_ids": -1}, "Sampling.n_ids=-1 must not be negative"),
        ({"top_p": 0.0}, r"Sampling.top_p=0.0 must be in \(0, 1\]"),
        ({"top_p": 1.5}, r"Sampling.top_p=1.5 must be in \(0, 1\]"),
        ({"top_p": float("nan")}, r"Sampling.top_p=nan must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            Sampling(**fields)
