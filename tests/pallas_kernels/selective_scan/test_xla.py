"""`reference` against a hand-worked case, and `xla` against `reference` in float64: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.selective_scan import reference, selective_scan
from tests.pallas_kernels.selective_scan.cases import Call, measured, truth
from tests.pallas_kernels.shared import assert_close, full


def test_reference_by_hand():
    """Kills: a decay that acts after the token is written, delta that is not a factor of x, a document that sees the
    one before it.

    d = 1, n = 2, a = log(1/2, 1/4). h_0 = (8, 4); deltas 1 and 2.
    h_1 = (4, 1) + 1 * 3 (1, 2) = (7, 7), y_1 = 7 - 7 = 0.
    h_2 = (7/4, 7/16) + 2 * 1 (2, 0) = (5.75, 0.4375), y_2 = 2 * 0.4375.
    """
    x, delta = (np.float32(z).reshape(1, 2, 1) for z in ([3, 1], [1, 2]))
    a = np.log(np.float32([[0.5, 0.25]]))
    b, c = (np.float32(z)[None] for z in ([[1, 2], [2, 0]], [[1, -1], [0, 2]]))
    h0 = np.float32([8, 4]).reshape(1, 1, 2)
    recurrence = jax.jit(reference.recurrence)
    y, h = recurrence(x, delta, a, b, c, initial_state=h0)
    np.testing.assert_allclose((*y.ravel(), *h.ravel()), [0, 0.875, 5.75, 0.4375], rtol=1e-6, atol=1e-6)
    y, h = recurrence(x, delta, a, b, c, initial_state=h0, segment_ids=np.int32([[4, 5]]))
    np.testing.assert_allclose((*y.ravel(), *h.ravel()), [0, 0, 4, 0], atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        Call(t=150, documents=True),
        full(Call(t=1, state=False)),
        full(Call(t=131, n=16, decay=60.0)),
        full(Call(t=200, dtype="bfloat16", delta_dtype="bfloat16", documents=True)),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: a leak across documents, padding that changes the state, a state of no gradient."""
    found, expected = measured(call, implementation="xla"), truth(call)
    values, gradients = (1e-5, 1e-4) if call.dtype == "float32" else (4e-3, 8e-3)
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.parametrize(
    ("platform", "call"),
    [("tpu", Call(t=100, documents=True)), full("cuda", Call(t=17, n=16, state=False))],
    ids=str,
)
def test_many_tokens_at_once(platform, call):
    """Kills: a broken form for accelerators, in several chunks (TPU) or one (GPU); groups of other rows."""
    with lowering_for(platform):
        found = measured(call, implementation="xla")
    assert_close(found, truth(call), 1e-4)


def test_errors_name_argument_received_and_rule():
    x, a, b = np.zeros((1, 3, 4), np.float32), np.zeros((4, 2), np.float32), np.zeros((1, 3, 2), np.float32)
    cases = [
        ((x, x[:, :2], a, b, b), {}, r"\(1, 3, 4\), \(1, 2, 4\) must both be \(b, t, d\)"),
        ((x, x, a[:3], b, b), {}, r"a of shape \(3, 2\) must be \(d, n\), with d=4"),
        ((x, x, a, b, b[:, :2]), {}, r"must both be \(b, t, n\)=\(1, 3, 2\)"),
        ((x, x, a, b, b.astype(jnp.bfloat16)), {}, "must be equal; cast"),
        ((x, x.astype(np.float16), a, b, b), {}, "dtype of delta float16 must be float32 or that of x"),
        ((x, x, a, b, b), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((x, x, a, b, b), {"initial_state": jnp.zeros((1, 2, 4))}, "initial_state of shape"),
        ((x, x, a, b, b), {"implementation": "fast"}, "must be one of"),
    ]
    for arrays, options, match in cases:
        with pytest.raises(ValueError, match=match):
            selective_scan(*arrays, **options)
    empty = functools.partial(selective_scan, return_state=True)
    y, state = jax.eval_shape(empty, x[:, :0], x[:, :0], a, b[:, :0], b[:, :0])
    assert (y.shape, state.shape) == ((1, 0, 4), (1, 4, 2))
