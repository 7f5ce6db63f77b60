"""The general delta rule in chunks against its recurrence token by token in float64: values and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.delta_chunks import general_delta_rule, reference
from pallas_kernels.dispatch import lowering_for
from tests.pallas_kernels.delta_chunks.general_cases import Call, arrays_of, evaluate, truth
from tests.pallas_kernels.shared import assert_close, full


def test_reference_by_hand():
    """Kills: a removal that reads the state after its decay, or after the write of its token.

    k = v = 1, S_0 = 4. Token 0: decay 1/2, u 3, z -1/4, k 2, v 5: S = 2 - 3 + 10 = 9, y = 9 * 2 = 18.
    Token 1: decay 0, u 1, z 1, k 1, v -2: S = 0 + 9 - 2 = 7, y = -7.
    """
    tokens = [2, -1], [2, 1], [5, -2], [3, 1], [-0.25, 1], [np.log(0.5), -np.inf]
    arrays = (jnp.asarray(x, jnp.float32).reshape(1, 2, 1, 1) for x in tokens)
    y, state = reference.general_recurrence(*arrays, initial_state=jnp.full((1, 1, 1, 1), 4.0))
    np.testing.assert_allclose((*y.ravel(), *state.ravel()), [18, -7, 7], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "last"),
    [
        (Call(t=150), True),
        full(Call(t=1), True),
        full(Call(t=64, state=False), False),
        full(Call(t=300, k=16, v=32, dtype="bfloat16"), True),
    ],
    ids=str,
)
def test_values_and_gradients(call, last):
    """Kills: products of a chunk that reach a wrong token; a gradient of mix that misses its transpose; a cotangent of
    the last state or of a state in between that is lost; padding that changes the last state."""

    def run(*arrays):
        options = {"return_state": last, "implementation": "xla"}
        return general_delta_rule(*arrays[:6], initial_state=arrays[6], **options)

    found, expected = evaluate(run, *arrays_of(call)), truth(call, last=last)
    values, gradients = (1e-5, 1e-4) if call.dtype == "float32" else (5e-3, 1e-2)
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.full
def test_rounded_operands():
    """Kills: a broken form for accelerators, whose matmuls take bfloat16."""
    call = Call(t=130, k=16, v=32, dtype="bfloat16")
    with lowering_for("cuda"):
        found = evaluate(lambda *a: general_delta_rule(*a[:6], initial_state=a[6], return_state=True), *arrays_of(call))
    assert_close(found, truth(call), 1e-2)


def test_errors_name_argument_received_and_rule():
    q, v = jnp.zeros((1, 8, 2, 3)), jnp.zeros((1, 8, 2, 5))
    cases = [
        ((q, q, v[:, :, 0], q, q, q), {}, r"must be \(b, t, h, k\), \(b, t, h, v\)"),
        ((q, q, v, q, q, q[..., 0]), {}, r"log_decay of shape \(1, 8, 2\) must be \(b, t, h, k\)=\(1, 8, 2, 3\)"),
        ((q, q, v, q, q.astype(jnp.bfloat16), q), {}, "must be equal; cast them"),
        ((q, q, v, q, q, q), {"initial_state": jnp.zeros((1, 2, 5, 3))}, "initial_state of shape"),
        ((q, q, v, q, q, q), {"implementation": "fast"}, "must be one of"),
    ]
    for arrays, options, match in cases:
        with pytest.raises(ValueError, match=match):
            general_delta_rule(*arrays, **options)
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        general_delta_rule(q, q, v, q, q, q, implementation="mosaic_gpu")
    y, state = general_delta_rule(q[:, :0], q[:, :0], v[:, :0], q[:, :0], q[:, :0], q[:, :0], return_state=True)
    assert (y.shape, state.shape) == ((1, 0, 2, 5), (1, 2, 3, 5))
    y, state = jax.eval_shape(lambda *x: general_delta_rule(*x, return_state=True), q, q, v, q, q, q)
    assert (y.shape, state.shape) == ((1, 8, 2, 5), (1, 2, 3, 5))
