"""Causal convolution of packed documents: rows hold several documents, between which no information passes.

A Fourier transform cannot be masked, so time is split recursively, into blocks of 16, 32, 64, ... tokens. Within a
block, the left half contributes to the right half only inside the one document that spans the midpoint: both halves are
masked to that document and convolved. Pairs within the same block of 8 tokens use masked shifted adds. Each pair of
tokens is counted once, in O(t log^2 t) for long filters.

Forward and backward pass on two CPU cores at (b, t, d) = (8, 1024, 64) and w = 1024, with documents of 150 tokens on
average, take about 3.5 times as long as the unmasked transform.
"""

import functools

import jax
import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.short_conv.xla import convolve_packed, document_count

BLOCK = 8
"""Block length for shifted adds, and the widest filter that needs nothing else."""

MAX_MATRIX = 64
"""Largest half block that uses a Toeplitz matrix. Forward and backward pass of one level at the sizes above, matrix and
Fourier transform, in ms: 8: 1.3, 3.8; 32: 1.3, 3.6; 64: 2.6, 3.5; 128: 6.7, 4.2."""


def packed_conv(
    x: Float[Array, "b t d"], taps: Float[Array, "w d"], segment_ids: Int[Array, "b t"]
) -> Float[Array, "b t d"]:
    """`y_i = sum_a taps[a] x_{i-a}` over inputs in the document of token `i`; float32 sums, dtype of `x`.

    Args:
      x: inputs, any `t >= 0`.
      taps: `taps[a]` multiplies the input of `a` tokens ago; `w >= 1`.
      segment_ids: each run of equal ids in a row is one document.

    Returns:
      `(b, t, d)`.
    """
    t = x.shape[1]
    if t == 0:
        return x
    dtype, x, taps = x.dtype, x.astype(jnp.float32), taps[:t].astype(jnp.float32)
    starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    documents = document_count(starts)
    if taps.shape[0] <= BLOCK:
        return convolve_packed(x, taps, documents).astype(dtype)
    pieces = document_count(starts | (jnp.arange(t) % BLOCK == 0)[None])
    y_dbt = convolve_packed(x, taps[:BLOCK], pieces).transpose(2, 0, 1)
    x_dbt, taps_dw, half = x.transpose(2, 0, 1), taps.T, BLOCK
    while half < t:
        # Without the barrier XLA fuses the sums of all levels, in both passes, which takes twice as long on a CPU.
        x_dbt, taps_dw, y_dbt = jax.lax.optimization_barrier((x_dbt, taps_dw, y_dbt))
        # The checkpoint keeps x instead of a spectrum per level, at the same speed.
        y_dbt += jax.checkpoint(functools.partial(_left_to_right, half=half))(x_dbt, taps_dw, documents)
        half *= 2
    return y_dbt.transpose(1, 2, 0).astype(dtype)


def _left_to_right(x_dbt: jax.Array, taps_dw: jax.Array, documents: jax.Array, *, half: int) -> jax.Array:
    """Contribution of the left halves of all blocks of `2 half` tokens to their right halves, (d, b, t)."""
    d, b, t = x_dbt.shape
    blocks = -(-(t - half) // (2 * half))  # blocks whose right half begins before t
    size = 2 * half * blocks
    reach = min(half, 1 << (taps_dw.shape[1] - 2).bit_length())  # at most w - 1 tokens on either side of the midpoint
    left, right = slice(half - reach, half), slice(half, half + reach)
    documents = _first(documents, size).reshape(1, b, blocks, 2 * half)
    spanning = documents[..., half, None]  # empty on the left if a document starts at the midpoint
    inputs = _first(x_dbt, size).reshape(d, b, blocks, 2 * half)[..., left]
    inputs = jnp.where(documents[..., left] == spanning, inputs, 0.0)
    y = _toeplitz(inputs, taps_dw) if reach <= MAX_MATRIX else _fourier(inputs, taps_dw)
    y = jnp.where(documents[..., right] == spanning, y, 0.0)
    y = jnp.pad(y, ((0, 0), (0, 0), (0, 0), (half, half - reach)))
    return _first(y.reshape(d, b, size), t)


def _toeplitz(inputs: jax.Array, taps_dw: jax.Array) -> jax.Array:
    """`y_i = sum_j taps[m + i - j] inputs_j` over the last axis, of size m: m outputs that follow m inputs."""
    d, b, blocks, m = inputs.shape
    lags = m + jnp.arange(m)[None, :] - jnp.arange(m)[:, None]
    matrix = _first(taps_dw, 2 * m)[:, lags]
    y = jnp.matmul(inputs.reshape(d, b * blocks, m), matrix, precision=jax.lax.Precision.HIGHEST)
    return y.reshape(d, b, blocks, m)


def _fourier(inputs: jax.Array, taps_dw: jax.Array) -> jax.Array:
    """`_toeplitz` by a transform of 2 m points; only the first m outputs wrap around, and they are dropped."""
    m = inputs.shape[-1]
    response = jnp.fft.rfft(_first(taps_dw, 2 * m))[:, None, None, :]
    return jnp.fft.irfft(jnp.fft.rfft(inputs, n=2 * m) * response, n=2 * m)[..., m:]


def _first(x: jax.Array, size: int) -> jax.Array:
    """Cuts or zero-pads the last axis to `size` entries."""
    missing = max(size - x.shape[-1], 0)
    return jnp.pad(x[..., :size], [(0, 0)] * (x.ndim - 1) + [(0, missing)])
