"""`reference` against a hand-worked case, and `xla` against `reference` in float64: values and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.ut_transform import (
    reference,
    sharded_ut_inverse,
    sharded_ut_transform,
    ut_inverse,
    ut_transform,
)
from tests.pallas_kernels.shared import assert_close, collectives, full, make_mesh, needs_eight_devices
from tests.pallas_kernels.ut_transform.cases import Call, arrays_of, evaluate, truth


def test_reference_by_hand():
    """Kills: beta of a column instead of a row, a decay of the wrong token, an inverse of I - A, a read that does not
    decay.

    One chunk of 2 tokens, k = (1, 2), (3, 1), decays 1/2 and 1/4, beta 2 and 3. A_10 = 3 * 1/4 * (3 + 2) = 15/4, so
    mix = [[1, 0], [-15/4, 1]] Diag(2, 3).
    """
    k = jnp.asarray([[1, 2], [3, 1]], jnp.float32)[None, :, None]
    beta, decay = (jnp.asarray(x, jnp.float32)[None, :, None] for x in ([2, 3], [0.5, 0.25]))
    mix, read, write, keep = reference.transform(k, beta, jnp.log(decay), 2)
    np.testing.assert_allclose(mix[0, 0, 0], [[2, 0], [-7.5, 3]], rtol=1e-6)
    np.testing.assert_allclose(read[0, :, 0], [[-0.5, -1], [-0.375, -0.125]], rtol=1e-6)
    np.testing.assert_allclose(write[0, :, 0], [[0.25, 0.5], [3, 1]], rtol=1e-6)
    np.testing.assert_allclose(keep[0, 0, 0], [0.125, 0.125], rtol=1e-6)


def by_name(call: Call, implementation: str | None = "xla"):
    """The call as a function of its arrays."""
    if call.k == 0:
        return lambda x, beta, _: (ut_inverse(x, beta, implementation=implementation),)
    return lambda *arrays: ut_transform(*arrays, chunk_size=call.chunk, implementation=implementation)


@pytest.mark.parametrize(
    "call",
    [
        Call(n=3),
        Call(n=2, decay="token", kind="documents"),
        Call(n=2, decay="channel"),
        full(Call(n=2, decay="token", kind="repeated", chunk=64)),
        full(Call(n=2, decay="channel", kind="strong")),
        full(Call(n=2, k=0)),
        Call(n=1, k=0, kind="no beta"),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: a wrong mask or sign; a gradient of the inverse, of beta, or of other users of the keys that is lost."""
    found, expected = evaluate(by_name(call), *arrays_of(call)), truth(call)
    assert_close(found[0], expected[0], 1e-5)
    assert_close(found[1], expected[1], 1e-4)


@pytest.mark.full
def test_rounded_operands():
    """Kills: a broken form for accelerators, whose matmuls take bfloat16."""
    call = Call(n=2, k=16, chunk=64, decay="token", dtype="bfloat16")
    with lowering_for("cuda"):
        found = evaluate(by_name(call, None), *arrays_of(call))
    assert_close(found, truth(call), 1e-2)


def test_errors_name_argument_received_and_rule():
    k, beta = jnp.zeros((1, 8, 2, 3), jnp.float32), jnp.zeros((1, 8, 2), jnp.float32)
    scores = jnp.zeros((1, 2, 2, 4, 4), jnp.float32)
    cases = [
        ((k[0], beta), {}, r"k of shape \(8, 2, 3\) must be \(b, t, h, k\)"),
        ((k, beta), {"chunk_size": 3}, "t=8 of k must be a multiple of chunk_size=3"),
        ((k, beta[:, :4]), {"chunk_size": 4}, r"beta of shape \(1, 4, 2\) must be \(b, t, h\)=\(1, 8, 2\)"),
        ((k, beta, k[..., :2]), {"chunk_size": 4}, r"log_decay of shape \(1, 8, 2, 2\) must be"),
        ((k, beta), {"chunk_size": 4, "implementation": "fast"}, "must be one of"),
    ]
    for arrays, options, match in cases:
        with pytest.raises(ValueError, match=match):
            ut_transform(*arrays, **options)
    with pytest.raises(ValueError, match=r"scores of shape \(1, 2, 2, 4, 3\) must be \(b, n, h, c, c\)"):
        ut_inverse(scores[..., :3])
    with pytest.raises(ValueError, match=r"beta of shape \(1, 4, 2\) must be \(b, n c, h\)=\(1, 8, 2\)"):
        ut_inverse(scores, beta[:, :4])
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        ut_transform(k, beta, chunk_size=4, implementation="mosaic_gpu")
    empty = ut_transform(k[:, :0], beta[:, :0])
    assert [x.shape for x in empty] == [(1, 0, 2, 64, 64), *[(1, 0, 2, 3)] * 4]
    assert ut_inverse(scores[:, :0]).shape == (1, 0, 2, 4, 4)


@pytest.mark.full
@needs_eight_devices
@pytest.mark.parametrize("call", [Call(n=2, b=4, h=4, decay="token"), Call(n=2, b=4, h=4, k=0)], ids=str)
def test_sharded(call):
    """Kills: a share of other rows or heads, collectives."""
    mesh = make_mesh((4, 2))
    options = {"mesh": mesh, "batch_axes": ("x",), "head_axes": ("y",)}

    def sharded(x, beta, log_decay=None):
        if call.k == 0:
            return (sharded_ut_inverse(x, beta, **options),)
        return sharded_ut_transform(x, beta, log_decay, chunk_size=call.chunk, **options)

    arrays, cotangents = arrays_of(call)
    assert_close(evaluate(sharded, arrays, cotangents), truth(call), 1e-4)
    spec = jax.sharding.NamedSharding(mesh, jax.P("x", None, "y"))
    assert collectives(sharded, [jax.device_put(z, spec) for z in arrays if z is not None]) == []
