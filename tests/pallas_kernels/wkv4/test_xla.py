"""`reference` against a hand-worked case, and `xla` against `reference` in float64: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.wkv4 import Wkv4State, reference, wkv4, xla
from tests.pallas_kernels.shared import assert_close, full
from tests.pallas_kernels.wkv4.cases import Call, measured, truth


def test_reference_by_hand():
    """Kills: a decay between neighbours, a bonus in the state, a document that sees the one before it."""
    k, v = np.log(np.float32([[2, 3, 5]]))[..., None], np.float32([[7, 11, 13]])[..., None]
    w, u = np.log(np.float32([4])), np.log(np.float32([10]))
    y, state = jax.jit(reference.recurrence)(k, v, w, u)
    expected = [7, (2 * 7 + 30 * 11) / 32, (2 / 4 * 7 + 3 * 11 + 50 * 13) / (2 / 4 + 3 + 50)]
    np.testing.assert_allclose(np.ravel(y), expected, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(state.den * np.exp(state.max)), 2 / 16 + 3 / 4 + 5, rtol=1e-6)
    y, state = jax.jit(reference.recurrence)(k, v, w, u, segment_ids=np.int32([[4, 4, 9]]))
    np.testing.assert_allclose(np.ravel(y), [*expected[:2], 13], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(state.den * np.exp(state.max)), 5, rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        Call(t=150, documents=True, size=30.0),
        full(Call(t=1, state=False)),
        full(Call(t=131, swing=80.0)),
        full(Call(t=200, dtype="bfloat16", documents=True)),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: a leak across documents, padding that changes the state, a state of no gradient, an overflow."""
    found, expected = measured(call, implementation="xla"), truth(call)
    # A float32 exponent of 100 is off by up to 4e-6, and so is a weight.
    values, gradients = (1e-4, 1e-4) if call.dtype == "float32" else (4e-3, 8e-3)
    assert_close(found[:2], expected[:2], values)
    assert_close(found[2], expected[2], gradients)


def test_many_tokens_at_once(monkeypatch):
    """Kills a broken form for accelerators, which on a CPU does not run."""
    monkeypatch.setattr(xla, "in_turn", xla.by_tree)
    call = Call(t=100, documents=True, size=5.0)
    with lowering_for("cuda"):
        found = measured(call, implementation="xla")
    assert_close(found, truth(call), 1e-4)


def test_backward_of_the_table():
    """Kills: a gradient lost between `api.py` and `xla.py`, of a state or of none."""
    for call in (Call(t=20, documents=True), Call(t=5, state=False)):
        expected = truth(call)[2]
        k, v, w, u, *sums = (np.asarray(x, np.float32) for x in call.arrays())
        state = Wkv4State(*sums, np.float32(call.largest())) if sums else None
        dy, dnum, dden = (np.asarray(x, np.float32) for x in call.cotangents())
        keep = xla.keep_of(call.segment_ids)
        dstate = Wkv4State(dnum, dden, np.zeros_like(dnum))
        *found, start = jax.jit(xla.backward)(k, v, w, u, keep, state, dy, dstate)
        assert_close([*found, *((start.num, start.den) if start else ())], expected, 1e-4)


def test_errors_name_argument_received_and_rule():
    k, w = np.zeros((1, 3, 4), np.float32), np.zeros((4,), np.float32)
    cases = [
        ((k, k[:, :2], w, w), {}, r"\(1, 3, 4\), \(1, 2, 4\) must both be \(b, t, d\)"),
        ((k, k.astype(jnp.bfloat16), w, w), {}, "must be equal; cast"),
        ((k, k, w[:3], w), {}, r"\(3,\), \(4,\) must both be \(d,\)=\(4,\)"),
        ((k, k, w, w), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((k, k, w, w), {"initial_state": Wkv4State(*[jnp.zeros((1, 3))] * 3)}, "initial_state.num of shape"),
        ((k, k, w, w), {"implementation": "fast"}, "must be one of"),
    ]
    for arrays, options, match in cases:
        with pytest.raises(ValueError, match=match):
            wkv4(*arrays, **options)
    empty = functools.partial(wkv4, return_state=True)
    y, state = jax.eval_shape(empty, k[:, :0], k[:, :0], w, w)
    assert (y.shape, state.num.shape) == ((1, 0, 4), (1, 4))
