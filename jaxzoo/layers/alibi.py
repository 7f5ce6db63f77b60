"""Attention with linear biases (ALiBi, Press et al. 2021, sec. 3): a penalty on distance, by head."""

import jax.numpy as jnp
import numpy as np

from jaxzoo.utils.array_typing import Array, Float, Int


def alibi_slopes(n_heads: int) -> np.ndarray:
    """Slopes of `n_heads` heads, float64 `(h,)`: the geometric sequence 2^(-8 i / n_heads), i = 1..n_heads.

    If `n_heads` is not a power of two: the slopes for `m`, the next lower power, then the slopes for `2 m` with odd
    `i`, as in the authors' code.
    """
    m = 1 << (n_heads.bit_length() - 1)
    slopes = 2.0 ** (-8 / m * np.arange(1, m + 1))
    between = 2.0 ** (-8 / (2 * m) * np.arange(1, 2 * m, 2))
    return np.concatenate([slopes, between[: n_heads - m]])


def alibi_bias(
    n_heads: int, query_positions: Int[Array, "b t"], key_positions: Int[Array, "b s"]
) -> Float[Array, "b h t s"]:
    """Bias `-slope * (i - j)` of the scores of query position `i` and key position `j`, float32.

    Future keys (`j > i`) get a positive bias; the caller must mask them.
    """
    distance = (query_positions[:, :, None] - key_positions[:, None, :]).astype(jnp.float32)
    slopes = jnp.asarray(alibi_slopes(n_heads), jnp.float32)
    return -slopes[None, :, None, None] * distance[:, None, :, :]
