"""Symmetric second-order Taylor features, in the layout that all implementations share.

    exp(s) ~ 1 + s + s^2/2 = sum_f coefficient_f phi_f(q) phi_f(k),   s = scale * q.k

    phi(x) = [1, x_0 .. x_{k-1}, x_a x_b for a <= b]                 1 + k + k(k+1)/2 features

(Based, sec. 3.1 and App. B; the paper has all k^2 products.) Pairs are in the order of `np.triu_indices(k)`. Weights
and scale are on the query side, as `query_coefficients`:

    coefficient_f = scale^degree(f) * (1/2 if f is a square x_a^2, else 1)

so states depend on keys and values only: s = sum_j phi(k_j) v_j^T, z = sum_j phi(k_j). With one-hot matrices,

    phi(x) = (x @ left + left_offset) * (x @ right + right_offset)

Full form: [1, x_a, x_a x_b for all a, b row-major], 1 + k + k^2 features, coefficient 1/2 on every product.
The paper's own features are the full form times [1, scale^(1/2), (scale^2/2)^(1/2)] by degree, for queries
and for keys."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Selection(NamedTuple):
    """One-hot matrices of phi, padded with zero columns."""

    left: np.ndarray  # (k, width) float32
    right: np.ndarray  # (k, width) float32
    left_offset: np.ndarray  # (width,) float32
    right_offset: np.ndarray  # (width,) float32


def n_features(k: int) -> int:
    """1 + k + k(k+1)/2: 153 for k = 16."""
    return 1 + k + k * (k + 1) // 2


def n_full_features(k: int) -> int:
    """1 + k + k^2: 273 for k = 16."""
    return 1 + k + k * k


def pair_indices(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors (a, b), a <= b, of the second-order features in order."""
    return np.triu_indices(k)


def degrees(k: int) -> np.ndarray:
    """Degree (0, 1 or 2) of each feature, (features,) int32."""
    return np.repeat(np.arange(3, dtype=np.int32), [1, k, k * (k + 1) // 2])


def query_coefficients(k: int, scale: float) -> np.ndarray:
    """scale^degree, halved on squares: (features,) float64; the Taylor weights for scale = 1."""
    first, second = pair_indices(k)
    weights = np.concatenate([np.ones(1 + k), np.where(first == second, 0.5, 1.0)])
    return weights * np.float64(scale) ** degrees(k)


def feature_map(x: jax.Array) -> jax.Array:
    """phi(x): (..., k) -> (..., features), in the dtype of x."""
    first, second = pair_indices(x.shape[-1])
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, x[..., first] * x[..., second]], axis=-1)


def query_feature_map(x: jax.Array, scale: float) -> jax.Array:
    """coefficient * phi(x), whose product with `feature_map(k)` is 1 + s + s^2/2."""
    coefficients = query_coefficients(x.shape[-1], scale).reshape((1,) * (x.ndim - 1) + (-1,))
    return feature_map(x) * jnp.asarray(coefficients, x.dtype)


def selection(k: int, width: int | None = None) -> Selection:
    """One-hot factors of phi, padded with zero columns to `width` (default: no padding)."""
    features = n_features(k)
    width = features if width is None else width
    if width < features:
        raise ValueError(f"width={width} must be at least the {features} features of k={k}")
    first, second = pair_indices(k)
    linear, pairs = 1 + np.arange(k), 1 + k + np.arange(first.size)
    left, right = np.zeros((2, k, width), np.float32)
    left_offset, right_offset = np.zeros((2, width), np.float32)
    left_offset[0] = right_offset[0] = 1
    left[np.arange(k), linear] = 1
    right_offset[linear] = 1
    left[first, pairs] = 1
    right[second, pairs] = 1
    return Selection(left, right, left_offset, right_offset)


def symmetric_to_full(x: jax.Array, *, k: int, axis: int) -> jax.Array:
    """Copies each pair (a, b) to (b, a): 1 + k + k(k+1)/2 features on `axis` become 1 + k + k^2."""
    _check_features(x, n_features(k), k, axis)
    return jnp.take(x, _full_to_symmetric_index(k), axis=axis)


def full_to_symmetric(x: jax.Array, *, k: int, axis: int) -> jax.Array:
    """The inverse of `symmetric_to_full`: keeps the pairs a <= b."""
    _check_features(x, n_full_features(k), k, axis)
    first, second = pair_indices(k)
    index = np.concatenate([np.arange(1 + k), 1 + k + first * k + second])
    return jnp.take(x, index, axis=axis)


def _full_to_symmetric_index(k: int) -> np.ndarray:
    """Index of the symmetric feature that equals each full feature."""
    first, second = pair_indices(k)
    table = np.zeros((k, k), np.int32)
    table[first, second] = table[second, first] = 1 + k + np.arange(first.size)
    return np.concatenate([np.arange(1 + k), table.reshape(-1)])


def _check_features(x: jax.Array, expected: int, k: int, axis: int) -> None:
    if x.shape[axis] != expected:
        raise ValueError(f"x.shape[{axis}]={x.shape[axis]} must be {expected} features for k={k}")
