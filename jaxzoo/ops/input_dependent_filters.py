"""Convolution filters computed from the sequence: at which distances its tokens repeat, and how strongly (Zoology, App.
H.8). They are not causal: the filter depends on the whole sequence.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.layers.causal_conv import fast_size
from jaxzoo.utils.array_typing import Array, Bool, Float, Int


def naive_match_counts(
    tokens: Int[Array, "b t"], *, pairs: Literal["nearest", "all"], ignored: int | None = None
) -> Int[Array, "b t"]:
    """Quadratic form of `match_counts`."""
    i, lag = np.indices((tokens.shape[1], tokens.shape[1]))
    same = (tokens[:, i] == tokens[:, i - lag]) & ((lag >= 1) & (lag <= i))[None]
    same = same if ignored is None else same & (tokens != ignored)[..., None]
    if pairs == "nearest":
        same = same & (jnp.cumsum(same, axis=2) == 1)
    return same.sum(1)


def naive_autocorrelation(x: Float[Array, "b t d"]) -> Float[Array, "b t"]:
    """Quadratic form of `autocorrelation`."""
    i, lag = np.indices((x.shape[1], x.shape[1]))
    return jnp.einsum("bid,bisd->bs", x, jnp.where((lag <= i)[None, ..., None], x[:, i - lag], 0))


def naive_conv_rows(x: Float[Array, "b t d"], taps: Float[Array, "b t"]) -> Float[Array, "b t d"]:
    """Quadratic form of `conv_rows`."""
    i, lag = np.indices((x.shape[1], x.shape[1]))
    return jnp.einsum("bs,bisd->bid", taps, jnp.where((lag <= i)[None, ..., None], x[:, i - lag], 0))


def match_counts(
    tokens: Int[Array, "b t"], *, pairs: Literal["nearest", "all"], ignored: int | None = None
) -> Int[Array, "b t"]:
    """Counts pairs of equal tokens at each distance `s = 0..t-1`; 0 for `s = 0`.

    Args:
      tokens: ids.
      pairs: `nearest`: each token and its previous occurrence, O(t log t); `all`: all previous ones, O(t^2).
      ignored: an id that matches nothing.
    """
    t = tokens.shape[1]
    if t == 0:
        return tokens
    counted = tokens != (-1 if ignored is None else ignored)
    if pairs == "nearest":
        # A stable sort puts the occurrences of a token next to each other, in their order.
        order = jnp.argsort(tokens, axis=1, stable=True)
        ids, counted = (jnp.take_along_axis(x, order, axis=1) for x in (tokens, counted))
        again = jnp.pad((ids[:, 1:] == ids[:, :-1]) & counted[:, 1:], ((0, 0), (1, 0)))
        lags = jnp.where(again, jnp.diff(order, axis=1, prepend=0), 0)
        rows = jnp.arange(tokens.shape[0])[:, None]
        return jnp.zeros_like(tokens).at[rows, lags].add(again.astype(tokens.dtype))

    def count(lag: jax.Array) -> jax.Array:
        same = (tokens == jnp.roll(tokens, lag, axis=1)) & counted & (jnp.arange(t) >= lag)[None]
        return jnp.where(lag > 0, same.sum(1, dtype=tokens.dtype), 0)

    return jax.lax.map(count, jnp.arange(t)).T


def autocorrelation(x: Float[Array, "b t d"]) -> Float[Array, "b t"]:
    """`r_s = sum_i x_i . x_{i-s}` for `s = 0..t-1`, zeros before the first token; float32, O(d t log t)."""
    t = x.shape[1]
    if t == 0:
        return x.sum(-1, dtype=jnp.float32)
    size = fast_size(2 * t - 1)
    spectrum = jnp.fft.rfft(x.astype(jnp.float32).swapaxes(1, 2), n=size)
    power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    return jnp.fft.irfft(power.sum(1), n=size)[:, :t]


def strongest_lags(r: Float[Array, "b t"], count: int) -> Bool[Array, "b t"]:
    """Mask of the `count` distances `s >= 1` with the largest `r_s`; ties go to the smallest distance."""
    b, t = r.shape
    best = jax.lax.top_k(r[:, 1:], min(count, max(t - 1, 0)))[1] + 1
    return jnp.zeros((b, t), bool).at[jnp.arange(b)[:, None], best].set(True)


def conv_rows(x: Float[Array, "b t d"], taps: Float[Array, "b t"]) -> Float[Array, "b t d"]:
    """`y_i = sum_{a <= i} taps_a x_{i-a}` with one filter per row, for all channels; float32 sums, O(d t log t)."""
    t = x.shape[1]
    if t == 0:
        return x
    size = fast_size(2 * t - 1)
    spectrum = jnp.fft.rfft(x.astype(jnp.float32).swapaxes(1, 2), n=size)
    response = jnp.fft.rfft(taps.astype(jnp.float32), n=size)[:, None]
    return jnp.fft.irfft(spectrum * response, n=size)[..., :t].swapaxes(1, 2).astype(x.dtype)
