"""`reference` against a hand-worked case, and `xla` against `reference` in float64: values and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.delta_chunks import api, delta_chunks, reference, sharded_delta_chunks
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.op import Options
from tests.pallas_kernels.delta_chunks.cases import Call, arrays_of, evaluate, truth
from tests.pallas_kernels.shared import assert_close, collectives, full, make_mesh, needs_eight_devices


def test_reference_by_hand():
    """Kills: mix transposed, a state that is kept before it is read, what is written from x in place of y.

    Two chunks of c = 2 tokens, k = v = 1, S_0 = 4.
    Chunk 0: x + read S = (1, 2) + (1, 0) 4 = (5, 2), mixed by [[1, 0], [2, 1]]: (5, 12); S = 4 / 2 + 3 * 5 + 0 = 17.
    Chunk 1: (0, 1) + (0, -1) 17 = (0, -16), mixed by [[0, 1], [1, 0]]: (-16, 0); S = 0 * 17 + 1 * -16 + 1 * 0 = -16.
    """
    tokens = [1, 2, 0, 1], [1, 0, 0, -1], [3, 0, 1, 1]
    x, read, write = (jnp.asarray(z, jnp.float32).reshape(1, 4, 1, 1) for z in tokens)
    mix = jnp.asarray([[[1, 0], [2, 1]], [[0, 1], [1, 0]]], jnp.float32).reshape(1, 2, 1, 2, 2)
    keep = jnp.asarray([0.5, 0], jnp.float32).reshape(1, 2, 1, 1)
    y, state = reference.recurrence(x, read, write, mix, keep, initial_state=jnp.full((1, 1, 1, 1), 4.0))
    np.testing.assert_allclose((*y.ravel(), *state.ravel()), [5, 12, -16, 0, -16])


@pytest.mark.parametrize(
    ("call", "last"),
    [
        (Call(n=3), True),
        full(Call(n=1, state=False), False),
        full(Call(n=5, state=False), True),
        full(Call(n=4, k=16, v=32, chunk=64, dtype="bfloat16"), False),
    ],
    ids=str,
)
def test_values_and_gradients(call, last):
    """Kills: a transpose that does not exchange read and write, states one chunk off, a cotangent of the last state
    that is lost."""

    def run(*arrays):
        options = {"return_state": last, "implementation": "xla"}
        return delta_chunks(*arrays[:5], initial_state=arrays[5], **options)

    found, expected = evaluate(run, *arrays_of(call)), truth(call, last=last)
    values, gradients = (1e-5, 1e-4) if call.dtype == "float32" else (4e-3, 8e-3)
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.full
def test_rounded_operands():
    """Kills: a broken form for accelerators, whose matmuls take bfloat16."""
    call = Call(n=4, k=16, v=32, chunk=64, dtype="bfloat16")
    with lowering_for("cuda"):
        found = evaluate(lambda *a: delta_chunks(*a[:5], initial_state=a[5], return_state=True), *arrays_of(call))
    assert_close(found, truth(call), 1e-2)


def test_states_are_those_before_every_chunk():
    """Kills: states after the chunks, or in another order."""
    arrays = arrays_of(Call(n=3, b=1))[0]
    options = Options(return_state=True, save_states=True)
    states = api.BACKENDS["xla"].forward(*arrays, options)[2]
    np.testing.assert_array_equal(states[:, 0], arrays[5])
    x, read, write, mix, keep, state = arrays
    first = reference.recurrence(x[:, :8], read[:, :8], write[:, :8], mix[:, :1], keep[:, :1], initial_state=state)
    assert_close(states[:, 1], first[1], 1e-5)


def test_errors_name_argument_received_and_rule():
    x, read, mix, keep, _ = (jnp.zeros(s, jnp.float32) for s in _shapes())
    cases = [
        ((x[:, :, 0], read, read, mix, keep), {}, r"must be \(b, t, h, v\), \(b, t, h, k\), \(b, t, h, k\)"),
        ((x, read, read[:, :4], mix, keep), {}, r"\(1, 8, 2, 3\), \(1, 4, 2, 3\) must be"),
        ((x[:, :7], read[:, :7], read[:, :7], mix, keep), {}, "t=7 of x must be a multiple of c=4"),
        ((x, read, read, mix[:, :1], keep), {}, r"mix of shape \(1, 1, 2, 4, 4\) must be .*\(1, 2, 2, 4, 4\)"),
        ((x, read, read, mix, keep[..., :2]), {}, r"keep of shape \(1, 2, 2, 2\) must be .*\(1, 2, 2, 3\)"),
        ((x, read, read, mix.astype(jnp.bfloat16), keep), {}, "must be equal; cast"),
        ((x, read, read, mix, keep), {"initial_state": np.zeros((1, 2, 5, 3))}, "initial_state of shape"),
        ((x, read, read, mix, keep), {"implementation": "fast"}, "must be one of"),
    ]
    for arrays, options, match in cases:
        with pytest.raises(ValueError, match=match):
            delta_chunks(*arrays, **options)
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        delta_chunks(x, read, read, mix, keep, implementation="mosaic_gpu")
    empty = (x[:, :0], read[:, :0], read[:, :0], mix[:, :0], keep[:, :0])
    y, state = delta_chunks(*empty, return_state=True)
    assert (y.shape, state.shape) == ((1, 0, 2, 5), (1, 2, 3, 5))


def _shapes():
    """x, read, mix, keep and the state of t=8 tokens in chunks of 4."""
    return (1, 8, 2, 5), (1, 8, 2, 3), (1, 2, 2, 4, 4), (1, 2, 2, 3), (1, 2, 3, 5)


@pytest.mark.full
@needs_eight_devices
def test_sharded():
    """Kills: a share of other rows or heads, collectives."""
    call, mesh = Call(n=3, b=4, h=4), make_mesh((4, 2))

    def sharded(*arrays):
        options = {"mesh": mesh, "batch_axes": ("x",), "head_axes": ("y",), "return_state": True}
        return sharded_delta_chunks(*arrays[:5], initial_state=arrays[5], **options)

    arrays, cotangents = arrays_of(call)
    assert_close(evaluate(sharded, arrays, cotangents), truth(call), 1e-4)
    specs = [jax.P("x", None, "y")] * 5 + [jax.P("x", "y")]
    placed = [jax.device_put(z, jax.sharding.NamedSharding(mesh, spec)) for z, spec in zip(arrays, specs, strict=True)]
    assert collectives(sharded, placed) == []
