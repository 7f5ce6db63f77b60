"""Filters that are computed from a sequence: the distances at which its tokens repeat, and how strongly (Zoology, App.
H.8).

All of them see the whole sequence: a filter that is applied to early tokens depends on late ones.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxzoo.layers.causal_conv import fast_size
from jaxzoo.utils.array_typing import Array, Bool, Float, Int


def match_counts(
    tokens: Int[Array, "b t"], *, pairs: Literal["nearest", "all"], ignored: int | None = None
) -> Int[Array, "b t"]:
    """Number of pairs of equal tokens at each distance `s = 0..t-1`; 0 for `s = 0`.

    Args:
      tokens: ids.
      pairs: `nearest`: each token with its last occurrence before, O(t log t); `all`: with all of them, O(t^2).
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
    """Mask of the `count` distances `s >= 1` with the largest `r_s` (of equal ones the smallest)."""
    b, t = r.shape
    best = jax.lax.top_k(r[:, 1:], min(count, max(t - 1, 0)))[1] + 1
    return jnp.zeros((b, t), bool).at[jnp.arange(b)[:, None], best].set(True)


def conv_rows(x: Float[Array, "b t d"], taps: Float[Array, "b t"]) -> Float[Array, "b t d"]:
    """`y_i = sum_{a <= i} taps_a x_{i-a}`, each row with taps of its own, alike in all channels; float32 sums, dtype of
    `x`, O(d t log t)."""
    t = x.shape[1]
    if t == 0:
        return x
    size = fast_size(2 * t - 1)
    spectrum = jnp.fft.rfft(x.astype(jnp.float32).swapaxes(1, 2), n=size)
    response = jnp.fft.rfft(taps.astype(jnp.float32), n=size)[:, None]
    return jnp.fft.irfft(spectrum * response, n=size)[..., :t].swapaxes(1, 2).astype(x.dtype)
