"""`reference` against a hand-worked case, and `xla` against `reference` in float64: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.gated_linear_attention import gated_linear_attention, reference
from tests.pallas_kernels.gated_linear_attention.cases import Call, measured, truth
from tests.pallas_kernels.shared import assert_close, full, slow


def test_reference_by_hand():
    """Kills: a decay that acts after the token is written, one of the neighbour's channel, a state that is not read.

    k = 2, v = 1. S_0 = (8, 4); decays (1/2, 1/4), then (1, 1/2).
    S_1 = (4, 1) + (1, 2) 3 = (7, 7), y_1 = 7 - 7 = 0;  S_2 = (7, 3.5) + (2, 0) 1 = (9, 3.5), y_2 = 2 * 3.5 = 7.
    """
    q, k = (jnp.asarray(x, jnp.float32).reshape(1, 2, 1, 2) for x in ([[1, -1], [0, 2]], [[1, 2], [2, 0]]))
    v = jnp.asarray([3, 1], jnp.float32).reshape(1, 2, 1, 1)
    decay = jnp.log(jnp.asarray([[0.5, 0.25], [1, 0.5]], jnp.float32)).reshape(1, 2, 1, 2)
    s0 = jnp.asarray([8, 4], jnp.float32).reshape(1, 1, 2, 1)
    recurrence = jax.jit(reference.recurrence)
    y, s = recurrence(q, k, v, decay, initial_state=s0)
    np.testing.assert_allclose(y.ravel(), [0, 7], atol=1e-6)
    np.testing.assert_allclose(s.ravel(), [9, 3.5], rtol=1e-6)
    y, s = recurrence(q, k, v, decay, initial_state=s0, segment_ids=np.int32([[4, 5]]))
    np.testing.assert_allclose((*y.ravel(), *s.ravel()), [0, 0, 2, 0], atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        Call(t=150, h=4, documents=True),
        full(Call(t=150, channel=True, documents=True)),
        full(Call(t=1, g=1, state=False)),
        slow(Call(t=131, decay=60.0)),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: heads of q that serve the wrong heads of v; a reset whose decay has a gradient; a leak across documents;
    a state of no gradient; sums whose difference rounds decays away."""
    found, expected = measured(call, implementation="xla"), truth(call)
    assert_close(found[0], expected[0], 1e-5)
    assert_close(found[1], expected[1], 1e-4)


@pytest.mark.full
def test_many_chunks_at_once():
    """Kills: a broken form for accelerators."""
    call = Call(t=200, h=4, documents=True)
    with lowering_for("cuda"):
        found = measured(call, implementation="xla")
    assert_close(found, truth(call), 1e-4)


def test_errors_name_argument_received_and_rule():
    q, v, g = (np.zeros((1, 3, *x), np.float32) for x in ((2, 4), (4, 5), (4,)))
    cases = [
        ((q, q[..., :3], v, g), {}, r"\(1, 3, 2, 3\), \(1, 3, 4, 5\) must be"),
        ((q, q, v[:, :, :3], g), {}, "3 heads of v must be a multiple of the 2"),
        ((q, q.astype(jnp.bfloat16), v, g), {}, "must be equal; cast"),
        ((q, q, v, g[:, :, :1]), {}, r"log_decay of shape \(1, 3, 1\) must be"),
        ((q, q, v, g), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((q, q, v, g), {"initial_state": jnp.zeros((1, 4, 5, 4))}, "initial_state of shape"),
        ((q, q, v, g), {"implementation": "fast"}, "must be one of"),
    ]
    for arrays, options, match in cases:
        with pytest.raises(ValueError, match=match):
            gated_linear_attention(*arrays, **options)
    empty = functools.partial(gated_linear_attention, return_state=True)
    y, state = jax.eval_shape(empty, q[:, :0], q[:, :0], v[:, :0], g[:, :0])
    assert (y.shape, state.shape) == ((1, 0, 4, 5), (1, 4, 4, 5))
    arrays = (q + 1, q + 1, v + 1, g)
    once, twice = jax.jit(lambda *x: (gated_linear_attention(*x), gated_linear_attention(*x, scale=2.0)))(*arrays)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)
    assert isinstance(once, jax.Array)
