"""`bonus_linear_attention` compared with its naive form in float64: values, states and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.ops.bonus_linear_attention import (
    bonus_linear_attention,
    bonus_linear_attention_step,
    naive_bonus_linear_attention,
)
from jaxzoo.ops.linear_attention import CHUNK, PIECE
from tests.ops.shared import assert_close, documents, in_float64, with_gradients
from tests.pallas_kernels.shared import slow

B, H, K, V = 2, 3, 5, 4
LONG = 2 * CHUNK + PIECE + 3


def run(q, k, v, log_decay, bonus, state, ids, op=bonus_linear_attention):
    return op(q, k, v, log_decay=log_decay, bonus=bonus, segment_ids=ids, initial_state=state)


def problem(t, decay="token", *, seed=0):
    """Queries, keys, values, log decays from e^-6 to e^1, bonuses and a random state, in float64."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(B, t, H, width)) for width in (K, K, V))
    log_decay = -np.exp(rng.uniform(-6, 1, size=(H, K) if decay == "constant" else (B, t, H, K)))
    return q, k, v, log_decay, rng.normal(size=(H, K)), rng.normal(size=(B, H, K, V))


@pytest.mark.parametrize(("decay", "packed"), [slow("constant", False), ("token", True)])
def test_values_and_gradients(decay, packed):
    """Kills: a token that reads itself twice or not at all, a decay before the first read, decays of the wrong token, a
    document that reads the last token of the one before, a last token that is not written; a state without gradient."""
    inputs, ids = problem(LONG, decay), documents(LONG, CHUNK) if packed else None
    rng = np.random.default_rng(1)
    cotangents = rng.normal(size=(B, LONG, H, V)), rng.normal(size=(B, H, K, V))

    def both(op):
        call = functools.partial(run, op=op, ids=None if ids is None else jnp.asarray(ids))
        return jax.jit(functools.partial(with_gradients, call))

    expected = in_float64(both(naive_bonus_linear_attention), inputs, cotangents)
    single = jax.tree.map(jnp.float32, (inputs, cotangents))
    (y, state), gradients = both(bonus_linear_attention)(*single)
    assert_close((y, state), expected[0], 1e-5)
    assert_close(gradients, expected[1], 1e-4)


@pytest.mark.full
def test_short_sequences_and_steps(default_compilation):
    """Kills: a chunk that is always read, a step that differs from the sequence, no tokens that change the state;
    compiled as users do."""
    lengths = (0, 1, 2, CHUNK, CHUNK + 1)
    *tokens, bonus, state = jax.tree.map(np.float32, problem(CHUNK + 1))

    @jax.jit
    def both(tokens, bonus, state):
        def step(state, now):
            y, state = bonus_linear_attention_step(state, *now[:3], log_decay=now[3], bonus=bonus)
            return state, (state, y)

        stepped = jax.lax.scan(step, state, tuple(x.swapaxes(0, 1) for x in tokens))[1]
        return stepped, {t: run(*(x[:, :t] for x in tokens), bonus, state, None) for t in lengths}

    (states, outputs), found = both(tokens, bonus, state)
    for t in lengths:
        y, after = found[t]
        assert y.shape == (B, t, H, V)
        assert_close(y, np.asarray(outputs).swapaxes(0, 1)[:, :t], 1e-5)
        assert_close(after, states[t - 1] if t else state, 1e-5)


def test_two_tokens_by_hand():
    """Kills: a decay of the token that is read the first time, a bonus that decays, a step without its decay."""
    x = lambda *tokens: np.array(tokens, np.float32).reshape(1, -1, 1, 1)  # noqa: E731
    options = {"log_decay": np.log(np.float32([[0.5]])), "bonus": np.float32([[10.0]])}
    y, state = jax.jit(bonus_linear_attention)(x(2, 3, 4), x(5, 7, 11), x(1, 2, 3), **options)
    np.testing.assert_allclose(np.ravel(y), [2 * 50, 3 * (5 + 140), 4 * (2.5 + 14 + 330)], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(state), [1.25 + 7 + 33], rtol=1e-6)
    y, state = jax.jit(bonus_linear_attention_step)(state, x(2)[:, 0], x(3)[:, 0], x(5)[:, 0], **options)
    np.testing.assert_allclose(np.ravel(y), [2 * (41.25 + 150)], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(state), [41.25 / 2 + 15], rtol=1e-6)
