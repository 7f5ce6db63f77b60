"""`log_linear_attention` compared with its naive form in float64, and the naive form with a case by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.log_linear_attention import (
    empty_log_linear_state,
    log_linear_attention,
    log_linear_attention_step,
    naive_log_linear_attention,
)
from tests.ops.shared import in_float64

B, T, H, K, V = 2, 37, 2, 3, 4


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
    q, k, v, log_decay, scales = given
    truth = functools.partial(naive_log_linear_attention, log_decay=log_decay, scales=scales)
    expected = in_float64(jax.jit(truth), q, k, v)
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


def test_runs_of_the_past_by_hand():
    """Kills a level for another: the past of place 13 is 8, 4 and 1 tokens of levels 4, 3 and 1, and its own token."""
    one = np.ones((1, 14, 1, 1), np.float32)
    scales = np.broadcast_to(10.0 ** np.arange(5, dtype=np.float32), (1, 14, 1, 5))
    y = naive_log_linear_attention(one, one, one, log_decay=0 * one[..., 0], scales=scales)
    assert int(y[0, 13, 0, 0]) == 84_011
