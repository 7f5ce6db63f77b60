"""Logistic regression on k-mer counts: the baseline of sequence classification, which knows no order beyond k bases."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxzoo.utils.array_typing import Array, Float, Int

ITERATIONS = 600
RATE = 0.03
"""Steps and learning rate of Adam."""
DECAY = 1e-3
"""Weight of half the squared length of all coefficients."""


def kmer_features(texts: Sequence[str], k: int) -> Float[np.ndarray, "n features"]:
    """Returns the share of each of the 4^k k-mers of A, C, G, T in a text, in units of a uniform share."""
    letters = np.full(256, -1)
    letters[list(b"ACGT")] = range(4)
    features = np.zeros((len(texts), 4**k), np.float32)
    for row, text in zip(features, texts, strict=True):
        ids = letters[np.frombuffer(text.encode(), np.uint8)]
        n = max(len(ids) - k + 1, 0)
        parts = np.stack([ids[i : i + n] for i in range(k)])
        numbers = (4 ** np.arange(k)[::-1] @ np.maximum(parts, 0))[(parts >= 0).all(axis=0)]
        row += np.bincount(numbers, minlength=4**k) * (4**k / max(len(numbers), 1))
    return features


def predict(
    train: Float[np.ndarray, "n features"],
    labels: Int[np.ndarray, "n"],
    test: Float[np.ndarray, "m features"],
    *,
    n_classes: int,
) -> Int[np.ndarray, "m"]:
    """Returns classes of the test rows by multinomial logistic regression on standardized features, by full-batch
    Adam."""
    mean = train.mean(axis=0)
    scale = train.std(axis=0) + 1e-6
    x = jnp.asarray((train - mean) / scale)
    y = jnp.asarray(labels)
    optimizer = optax.adam(RATE)

    def loss(parameters: tuple[Array, Array]) -> Array:
        weights, bias = parameters
        nats = optax.softmax_cross_entropy_with_integer_labels(x @ weights + bias[None], y).mean()
        return nats + DECAY / 2 * jnp.sum(weights**2)

    def step(_: Array, carry: tuple) -> tuple:
        parameters, state = carry
        updates, state = optimizer.update(jax.grad(loss)(parameters), state)
        return optax.apply_updates(parameters, updates), state

    zeros = jnp.zeros((x.shape[1], n_classes)), jnp.zeros(n_classes)
    with jax.numpy_dtype_promotion("standard"):  # optax raises decay rates to an integer power
        (weights, bias), _ = jax.lax.fori_loop(0, ITERATIONS, step, (zeros, optimizer.init(zeros)))
    scores = jnp.asarray((test - mean) / scale) @ weights + bias[None]
    return np.asarray(scores.argmax(axis=1))


def wilson_interval(n_right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Returns Wilson's interval of a share, of 95 % for z = 1.96, which is accurate also near 0 and 1."""
    share = n_right / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(center - half), float(center + half)
