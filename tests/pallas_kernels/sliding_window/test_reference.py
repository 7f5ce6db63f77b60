"""The truth itself: a case worked by hand, the hand-written gradient in numpy, and token by token."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.sliding_window import reference
from tests.pallas_kernels.shared import assert_close, full
from tests.pallas_kernels.sliding_window.cases import Call, measured, truth


def arrange(values):
    return np.array(values, np.float32).reshape(1, -1, 1, 1)


def test_hand_worked_case():
    """Kills a window one off, a scale that is lost, a start or a segment that hides the wrong side.

    Scale ln 2 turns scores 0, 1, 3 into weights 1, 2, 8.
    """
    q, k, v = arrange([1, 1, 1]), arrange([0, 1, 3]), arrange([10, 20, 30])

    @functools.partial(jax.jit, static_argnames="window")
    def attend(q, *rest, window):
        return reference.attention(q, k, v, *rest, window=window, scale=float(np.log(2))).ravel()

    np.testing.assert_allclose(attend(q, None, None, window=1), [10, 20, 30], rtol=1e-6)
    np.testing.assert_allclose(attend(q, None, None, window=2), [10, 50 / 3, 28], rtol=1e-6)
    np.testing.assert_allclose(attend(q, None, None, window=3), [10, 50 / 3, 290 / 11], rtol=1e-6)
    ids = np.array([[7, 4, 7]], np.int32)
    np.testing.assert_allclose(attend(q, None, ids, window=3), [10, 20, 250 / 9], rtol=1e-6)
    # The last two as queries after a past of one, that exists or not.
    np.testing.assert_allclose(attend(q[:, 1:], None, None, window=2), [50 / 3, 28], rtol=1e-6)
    np.testing.assert_allclose(attend(q[:, 1:], np.array([1]), None, window=2), [20, 28], rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        Call(t=23, window=6, segments=True, scale=0.7),
        Call(t=19, window=4, b=3, cache=True),
        full(Call(t=3, window=9, b=3, cache=True)),
        full(Call(t=0, window=9, cache=True)),
    ],
    ids=["segments", "wrapped", "short", "no_tokens"],
)
def test_against_numpy(call):
    """Kills a wrong mask, group or position, in float64: values, caches and every gradient."""
    with jax.enable_x64(True):
        call = dataclasses.replace(call, dtype=jnp.float64)
        outputs, gradients = jax.tree.map(np.asarray, measured(call, implementation="reference"))
        expected, expected_gradients = truth(call)
    assert outputs[0].dtype == np.float64
    assert_close(outputs, expected, 1e-12)
    assert_close(gradients, expected_gradients, 1e-12)
