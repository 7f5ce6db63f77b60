"""The contract of `jaxzoo.mixers.base`, run on every registered mixer.

The truth is `step`, token by token, the simplest of the three forms; each mixer's own tests check it against an
independent reference. States start warm: every row of the batch has seen another number of tokens.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import state_bytes
from tests.mixers.cases import CASES, build

BATCH, LENGTH = 3, 13
WARM = (0, 4, 9)
"""Tokens that each row has seen before the test begins."""

pytestmark = pytest.mark.parametrize("case", CASES)


@functools.cache
def mixer_of(case):
    return build(CASES[case])


def inputs(case, length=LENGTH, seed=2, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), (BATCH, length, CASES[case].d_model), dtype)


@functools.partial(jax.jit, static_argnums=0)
def run_steps(case, x, state):
    def body(state, x_t):
        y_t, state = mixer_of(case).step(x_t, state)
        return state, y_t

    state, y = jax.lax.scan(body, state, x.swapaxes(0, 1))
    return y.swapaxes(0, 1), state


@functools.partial(jax.jit, static_argnums=0)
def run_prefill(case, x, state):
    return mixer_of(case).prefill(x, state)


@functools.cache
def warm_state(case):
    """Row i has seen `WARM[i]` tokens, by `step` alone."""
    history = inputs(case, max(WARM), seed=3)
    states = [run_steps(case, history[:, :seen], mixer_of(case).init_state(BATCH))[1] for seen in WARM]
    return jax.tree.map(lambda *leaves: jnp.stack([leaf[row] for row, leaf in enumerate(leaves)]), *states)


def assert_close(actual, expected, tolerance=1e-5):
    """Every leaf within `tolerance` of the largest entry of its expectation (at least 1)."""
    jax.tree.map(functools.partial(_assert_leaf_close, tolerance), actual, expected)


def _assert_leaf_close(tolerance, actual, expected):
    scale = max(1.0, float(jnp.max(jnp.abs(expected), initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("cut", [0, 1, 4, 5, LENGTH - 1, LENGTH])
def test_prefill_then_step_equals_steps(case, cut):
    """Kills a wrong mask, chunk carry, decay, padding that enters a state, a ring that wraps wrongly."""
    x = inputs(case)
    expected_y, expected_state = run_steps(case, x, warm_state(case))
    y_head, state = run_prefill(case, x[:, :cut], warm_state(case))
    y_tail, stepped = run_steps(case, x[:, cut:], state)
    assert_close(jnp.concatenate([y_head, y_tail], axis=1), expected_y)
    assert_close(stepped, expected_state)
    y_tail, prefilled = run_prefill(case, x[:, cut:], state)
    assert_close(jnp.concatenate([y_head, y_tail], axis=1), expected_y)
    assert_close(prefilled, expected_state)


def test_call_equals_steps_from_init_state(case):
    """Kills a training form that disagrees with the streaming forms."""
    x = inputs(case)
    expected, _ = run_steps(case, x, mixer_of(case).init_state(BATCH))
    assert_close(mixer_of(case)(x), expected)


def test_causal_by_jacobian(case):
    """Kills a look at the future (exactly 0, but for the rounding of a Fourier transform) and a dead past."""
    x = inputs(case, 9)[:1]
    jacobian = jax.jacobian(lambda x: mixer_of(case)(x[None])[0])(x[0])
    strength = np.abs(np.asarray(jacobian)).max(axis=(1, 3))
    future = np.triu(strength, 1)
    rounding = 1e-5 * strength.max() if getattr(CASES[case], "filter", "short") != "short" else 0.0
    assert future.max() <= rounding
    assert np.diagonal(strength).min() > 1e-4
    assert np.diagonal(strength, -1).min() > 1e-4


def test_state_keeps_structure_and_dtype(case):
    """Kills a state that `lax.scan` refuses, or that drifts to another dtype under bfloat16 activations."""
    for dtype in (jnp.float32, jnp.bfloat16):
        state = mixer_of(case).init_state(BATCH, dtype)
        x = inputs(case, 3, dtype=dtype)
        _, prefilled = mixer_of(case).prefill(x, state)
        _, stepped = mixer_of(case).step(x[:, 0], state)
        for after in (prefilled, stepped):
            assert jax.tree.structure(after) == jax.tree.structure(state)
            assert [leaf.dtype for leaf in after] == [leaf.dtype for leaf in state]
            assert [leaf.shape for leaf in after] == [leaf.shape for leaf in state]
        assert all(leaf.shape[0] == BATCH for leaf in state)


def test_second_call_does_not_recompile(case):
    """Kills weak types and Python numbers that leak into a state."""
    mixer, traces = mixer_of(case), []

    @jax.jit
    def step(x_t, state):
        traces.append("step")
        return mixer.step(x_t, state)

    @jax.jit
    def prefill(x, state):
        traces.append("prefill")
        return mixer.prefill(x, state)

    x, state = inputs(case), mixer.init_state(BATCH)
    for _ in range(2):
        _, state = prefill(x[:, :3], state)
        _, state = step(x[:, 3], state)
    assert traces == ["prefill", "step"]


def test_jit_equals_eager(case):
    """Kills a branch on a traced value, and numbers that depend on how the program is built."""
    x, mixer = inputs(case), mixer_of(case)
    assert_close(jax.jit(mixer.__call__)(x), mixer(x), 1e-6)
    assert_close(run_prefill(case, x, warm_state(case)), mixer.prefill(x, warm_state(case)), 1e-6)


def test_every_parameter_learns(case):
    """Kills a parameter that nothing reads, and a gradient that is not finite."""
    definition, parameters = nnx.split(mixer_of(case), nnx.Param)
    x, cotangent = inputs(case), inputs(case, seed=4)
    gradients = jax.grad(lambda p: jnp.vdot(nnx.merge(definition, p)(x), cotangent))(parameters)
    for path, leaf in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-4, path


def test_gradients_cross_the_cut(case):
    """Kills a state that stops gradients, or carries wrong ones: two chunks must give one pass's gradient."""
    x, mixer, cotangent = inputs(case), mixer_of(case), inputs(case, seed=4)

    def cut_in_two(x):
        y_head, state = mixer.prefill(x[:, :6], mixer.init_state(BATCH))
        y_tail, _ = mixer.prefill(x[:, 6:], state)
        return jnp.vdot(jnp.concatenate([y_head, y_tail], axis=1), cotangent)

    expected = jax.grad(lambda x: jnp.vdot(mixer(x), cotangent))(x)
    assert_close(jax.jit(jax.grad(cut_in_two))(x), expected, 1e-4)


def test_rows_are_independent(case):
    """Kills a mix-up of batch and time or heads: another row 0 must leave rows 1 and 2 as they were."""
    x, mixer = inputs(case), mixer_of(case)
    other = x.at[0].set(inputs(case, seed=5)[0])
    np.testing.assert_array_equal(mixer(x)[1:], mixer(other)[1:])
    before, after = (run_prefill(case, x, warm_state(case)), run_prefill(case, other, warm_state(case)))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1:], b[1:]), before, after)
    assert np.abs(mixer(x)[0] - mixer(other)[0]).max() > 1e-3


def test_bfloat16_stays_close(case):
    """Kills sums in bfloat16: the relative L2 error stays within 3 % (three roundings of 2^-8 a layer, the largest
    seen over all cases about 1.2 %), and the output has the dtype of the input."""
    x, mixer = inputs(case), mixer_of(case)
    expected = np.asarray(mixer(x))
    y = mixer(x.astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float32) - expected) <= 0.03 * np.linalg.norm(expected)


def test_state_bytes_are_those_of_the_arrays(case):
    """Kills a size by formula."""
    state = mixer_of(case).init_state(2)
    assert state_bytes(mixer_of(case), 2) == sum(np.asarray(leaf).nbytes for leaf in state)
