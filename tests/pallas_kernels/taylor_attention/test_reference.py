"""The truth itself: a case worked by hand, and the pairs of tokens against the recurrence over full features."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.taylor_attention import TaylorState, reference, state_from_full, state_to_full
from tests.pallas_kernels.shared import assert_close, full
from tests.pallas_kernels.taylor_attention.cases import Call, features


def arrange(values):
    return np.array(values, np.float32).reshape(1, -1, 1, 1)


@pytest.mark.parametrize("run", [reference.quadratic, reference.recurrence])
def test_hand_worked_case(run):
    """Kills a missing 1/2, a scale on the wrong side, or a denominator without its own token.

    k = 1, scale 1: s_00 = 2, s_10 = 1, s_11 = 3, so weights 5, 2.5 and 8.5; decay 0.5 halves the 2.5.
    """
    run = jax.jit(run, static_argnames=("scale", "eps", "normalize"))
    q, k, v = arrange([2, 1]), arrange([1, 3]), arrange([10, 20])
    y, state = run(q, k, v, scale=1.0, eps=0.0, normalize=True)
    np.testing.assert_allclose(y.ravel(), [10, (2.5 * 10 + 8.5 * 20) / 11], rtol=1e-6)
    np.testing.assert_allclose(state.z.ravel(), [2, 1 + 3, 1 + 9], rtol=1e-6)
    np.testing.assert_allclose(state.s.ravel(), [30, 10 + 60, 10 + 180], rtol=1e-6)
    y, state = run(q, k, v, scale=1.0, eps=0.25, normalize=True, decay=np.float32([0.5]))
    np.testing.assert_allclose(y.ravel(), [50 / 5.25, (1.25 * 10 + 8.5 * 20) / 10], rtol=1e-6)
    np.testing.assert_allclose(state.z.ravel(), [1.5, 0.5 + 3, 0.5 + 9], rtol=1e-6)
    # The second token alone, from the state after the first: features of k = 1 are 1, 1, 1.
    first = TaylorState(np.full((1, 1, 3, 1), 10, np.float32), np.ones((1, 1, 3), np.float32))
    y, _ = run(q[:, 1:], k[:, 1:], v[:, 1:], scale=1.0, eps=0.0, normalize=False, initial_state=first)
    np.testing.assert_allclose(y.ravel(), [2.5 * 10 + 8.5 * 20], rtol=1e-6)


@pytest.mark.parametrize(
    ("t", "size", "normalize"),
    [(23, 5.0, True), full(0, 1.0, True), full(1, 1.0, True), full(16, 1.0, False)],
)
def test_pairs_equal_recurrence(t, size, normalize):
    """Kills a wrong symmetric feature, coefficient, decay power, group order or state, in float64; size 5: scores
    beyond 30, where 1 + s + s^2/2 cancels in its features."""
    call = Call(t=t, b=3, h=4, g=2, decay=True, normalize=normalize, eps=0.1, size=size)
    with jax.enable_x64(True):
        q, k, v, s, z = (jnp.asarray(x) for x in call.arrays())
        options = {"scale": 0.7, "eps": call.eps, "normalize": normalize, "decay": call.rates}
        state = TaylorState(s, z)
        forms = (reference.quadratic, reference.recurrence)
        runs = [jax.jit(functools.partial(run, **options))(q, k, v, initial_state=state) for run in forms]
    assert runs[0][0].dtype == jnp.float64
    assert size == 1 or 0.7 * np.abs(np.einsum("bihk,bjhk->bhij", q[:, :, :2], k)).max() > 30
    assert_close(runs[0], runs[1], 1e-13)


@pytest.mark.full
def test_full_states_are_sums_over_full_features():
    """Kills converters that agree with each other but not with the paper's k^2 products."""
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 6, 1, 3)), rng.normal(size=(2, 6, 1, 4))
    products = (k[..., :, None] * k[..., None, :]).reshape(2, 6, 1, 9)
    full = np.concatenate([np.ones_like(k[..., :1]), k, products], axis=-1)
    symmetric = features(k)

    def state(phi):
        sums = np.einsum("bjhf,bjhv->bhfv", phi, v), phi.sum(1)
        return TaylorState(*(jnp.asarray(x, jnp.float32) for x in sums))

    np.testing.assert_allclose(state_to_full(state(symmetric), 3).s, state(full).s, rtol=1e-5, atol=1e-5)
    for x, y in zip(state_from_full(state_to_full(state(symmetric), 3), 3), state(symmetric), strict=True):
        np.testing.assert_array_equal(x, y)
