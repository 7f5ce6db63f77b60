"""Log-linear attention against runs of the past that are laid out one after the other, the longest first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.log_linear_attention import (
    empty_log_linear_state,
    log_linear_attention,
    log_linear_attention_step,
)

B, T, H, K, V = 2, 37, 2, 3, 4


def runs(i):
    """(level, first, end) of the runs into which the places before i fall: greedily, powers of two from the left."""
    first = 0
    for digit in reversed(range(i.bit_length())):
        if i - first >= 2**digit:
            yield digit + 1, first, first + 2**digit
            first += 2**digit


def log_linear(q, k, v, log_decay, scales):
    """One head, (b, t, .), in float64; the last level takes what is above it."""
    y = np.zeros(v.shape)
    for i in range(v.shape[1]):
        for level, first, end in (*runs(i), (0, i, i + 1)):
            scale = scales[:, i, min(level, scales.shape[-1] - 1)]
            for j in range(first, end):
                weight = scale * np.exp(log_decay[:, j + 1 : i + 1].sum(1)) * (q[:, i] * k[:, j]).sum(-1)
                y[:, i] += weight[:, None] * v[:, j]
    return y


def tokens(n_levels):
    """Queries, keys, values, decays and scales, float64."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(B, T, H, n)) for n in (K, K, V))
    return q, k, v, -rng.uniform(0, 0.5, (B, T, H)), rng.uniform(0.2, 2, (B, T, H, n_levels))


def run(given, state, chunk_size, places=None):
    q, k, v, log_decay, scales = (jnp.asarray(x, jnp.float32) for x in given)
    return log_linear_attention(
        q, k, v, log_decay=log_decay, scales=scales, state=state, chunk_size=chunk_size, places=places
    )


@pytest.mark.parametrize("n_levels", [7, pytest.param(3, marks=pytest.mark.slow)])
def test_levels(n_levels):
    """Kills: a level for another, runs that are not joined, a decay of one token more, a chunk that forgets; at once,
    in chunks, token by token, and from a state in the middle of a chunk."""
    given = tokens(n_levels)
    expected = np.stack([log_linear(*(x[:, :, h] for x in given)) for h in range(H)], axis=2)
    start = empty_log_linear_state(B, n_levels, H, K, V)

    @jax.jit
    def all_ways(given):
        whole = [run(given, start, chunk_size) for chunk_size in (64, 8)]
        head, middle = run([x[:, :13] for x in given], start, 64)
        tail, last = run([x[:, 13:] for x in given], middle, 7)

        def step(state, token):
            q, k, v, log_decay, scales = token
            y, state = log_linear_attention_step(state, q, k, v, log_decay=log_decay, scales=scales)
            return state, y

        state, y = jax.lax.scan(step, start, [jnp.asarray(x, jnp.float32).swapaxes(0, 1) for x in given])
        return [*whole, (jnp.concatenate([head, tail], axis=1), last), (y.swapaxes(0, 1), state)]

    found = all_ways([x.astype(np.float32) for x in given])
    for y, state in found:
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        np.testing.assert_allclose(state.s, found[0][1].s, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(state.place, T)
