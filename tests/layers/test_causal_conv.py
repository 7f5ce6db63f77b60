"""The causal convolution against a loop over tokens and taps in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.layers.causal_conv import (
    MAX_DIRECT_TAPS,
    MAX_MATRIX_TOKENS,
    causal_conv,
    causal_conv_step,
    conv_flops,
    empty_history,
    push_history,
    uniform_parameter,
)
from tests.mixers.moved import quick_rngs

B, D = 3, 2
CONV, STEP, PUSH = jax.jit(causal_conv), jax.jit(causal_conv_step), jax.jit(push_history)


def truth(x, taps, history):
    """`y_i = sum_a taps[a] x_{i-a}`, token by token; `history` lies before `x`."""
    w, t = len(taps), x.shape[1]
    before = np.concatenate([history, x], axis=1)
    y = np.zeros_like(x)
    for i in range(t):
        for a in range(w):
            y[:, i] += taps[a] * before[:, i + w - 1 - a]
    return y


def make_inputs(t, w, seed=0):
    """x, taps, history; float64 values that float32 holds."""
    rng = np.random.default_rng(seed)
    shapes = ((B, t, D), (w, D), (B, w - 1, D))
    return [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in shapes]


def in_float32(arrays):
    return [np.float32(x) for x in arrays]


WIDTHS = [1, 3, MAX_DIRECT_TAPS, MAX_DIRECT_TAPS + 1, 23]


CORE = [*((31, w, w > 5) for w in WIDTHS), *((t, 23, False) for t in (10, 31, MAX_MATRIX_TOKENS + 1))]
MORE = [(0, 3, True), (0, 23, False), (1, 3, True), (5, 12, True), (5, 23, True)]


@pytest.mark.parametrize(("t", "w", "with_history"), [*CORE, *(pytest.param(*x, marks=pytest.mark.full) for x in MORE)])
def test_values(t, w, with_history):
    """Kills taps in reverse, a transform that wraps around, and a history that is dropped or off by one."""
    x, taps, history = make_inputs(t, w)
    if not with_history:
        history = np.zeros_like(history)
    x32, taps32, history32 = in_float32((x, taps, history))
    y = CONV(x32, taps32, history32 if with_history else None)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, truth(x, taps, history), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("t", "w", "with_history"), [(9, 3, True), (9, 23, True), (9, 12, False), (27, 23, False)])
def test_gradients(t, w, with_history):
    """Kills a gradient that misses the history or the unused taps. The output is linear in each argument, so
    the difference that one entry makes is its exact derivative."""
    arrays = make_inputs(t, w)
    if not with_history:
        arrays[2][:] = 0.0
    rng = np.random.default_rng(1)
    cotangent = rng.normal(size=arrays[0].shape)
    given = range(2 + with_history)
    loss = lambda *a: jnp.vdot(causal_conv(*a), np.float32(cotangent))  # noqa: E731
    gradients = jax.jit(jax.grad(loss, given))(*in_float32(arrays)[: len(given)])
    for index in given:
        expected = np.zeros_like(arrays[index])
        for entry in np.ndindex(expected.shape):
            moved = [np.copy(a) for a in arrays]
            moved[index][entry] += 1
            expected[entry] = np.vdot(truth(*moved) - truth(*arrays), cotangent)
        np.testing.assert_allclose(gradients[index], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("t", [7, MAX_MATRIX_TOKENS + 6])
def test_taps_beyond_the_length_leak_nothing(t):
    """Kills a transform too short for its taps: huge late taps reach back before the first token, not to the
    end."""
    x, _, _ = in_float32(make_inputs(t, t + 16))
    taps = np.zeros((t + 16, D), np.float32)
    taps[t:] = 1e4
    np.testing.assert_allclose(CONV(x, taps), np.zeros((B, t, D)), atol=1e-5)


@pytest.mark.parametrize("w", [1, 3, 23])
def test_steps_and_chunks_equal_one_call(w):
    """Kills a shift register that shifts the wrong way, or a push of fewer tokens than it holds, or more."""
    x, taps, history = make_inputs(29, w, seed=2)
    expected = truth(x, taps, history)
    x32, taps32, state = in_float32((x, taps, history))
    outputs = []
    for start, stop in ((0, 0), (0, 2), (2, 26)):
        outputs.append(CONV(x32[:, start:stop], taps32, state))
        state = PUSH(state, x32[:, start:stop])
    for i in range(26, 29):
        y, state = STEP(x32[:, i], taps32, state)
        outputs.append(y[:, None])
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, rtol=0, atol=1e-5)
    last = np.concatenate([history, x], axis=1)[:, 29:]
    np.testing.assert_array_equal(np.asarray(state, np.float64), last)


@pytest.mark.parametrize("w", [5, 23])
def test_bfloat16(w):
    """Kills sums in bfloat16: the output differs by its own rounding alone (relative L2 at most 2^-9), and
    the history keeps its dtype beside inputs of another."""
    x, taps, history = make_inputs(31, w)
    x = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    taps32, history32 = in_float32((taps, history))
    short = jnp.asarray(x, jnp.bfloat16)
    y = CONV(short, taps32, history32)
    y_t, after = STEP(short[:, 0], taps32, history32)
    expected = truth(x, taps, history)
    assert y.dtype == y_t.dtype == jnp.bfloat16
    assert after.dtype == jnp.float32
    for actual, wanted in ((y, expected), (y_t, expected[:, 0])):
        error = np.linalg.norm(np.asarray(actual, np.float64) - wanted)
        assert error <= 2**-9 * np.linalg.norm(wanted)


def test_empty_history():
    """Kills a register of w inputs instead of w - 1."""
    history = empty_history(B, 4, D, jnp.bfloat16)
    assert history.shape == (B, 3, D)
    assert history.dtype == jnp.bfloat16
    assert not history.any()


def test_uniform_parameter():
    """Kills a bound of fan_in or of its square root: uniform in +-1/sqrt(fan_in) has standard deviation
    1/sqrt(3 fan_in)."""
    values = np.asarray(uniform_parameter((4, 500), 4, (None, "channels"), rngs=quick_rngs())[...])
    assert 0.49 < np.abs(values).max() <= 0.5
    np.testing.assert_allclose(values.std(), 1 / np.sqrt(12), rtol=0.05)


def test_flops():
    """Kills a count of the wrong form: 2 w for shifted adds; else two transforms, here of 15 = 8 + 8 - 1
    points, as 8 of the 9 taps reach 8 tokens."""
    assert conv_flops(3, 100) == 6
    assert conv_flops(9, 8) == pytest.approx(15 * (5 * np.log2(15) + 3) / 8)


def test_errors():
    """Kills broadcasting of a filter or history of another shape."""
    x, taps, history = in_float32(make_inputs(4, 3))
    with pytest.raises(ValueError, match=r"taps of shape \(3, 1\) must be \(w, 2\)"):
        causal_conv(x, taps[:, :1])
    with pytest.raises(ValueError, match="history of 1 inputs must hold 2"):
        causal_conv(x, taps, history[:, 1:])
    with pytest.raises(ValueError, match="history of 1 inputs must hold 2"):
        causal_conv_step(x[:, 0], taps, history[:, 1:])
