"""The UT transform and `delta_values` by XLA and by interpreted Hopper kernels, against float64.

Kills: a block of the inverse in the wrong place, with the wrong sign or of another level; beta of a column in place of
a row; a tile of another head or chunk; a sum of decays from the wrong end of a chunk; a product that is not transposed;
a slot that is loaded, or a value that is overwritten, too early; a gradient of the inverse, of beta, of the state or of
other users of the keys that is lost; a positive exponent.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.op import Options
from pallas_kernels.ut_transform import (
    api,
    delta_values,
    reference,
    ut_inverse,
    ut_transform,
    values_api,
)
from pallas_kernels.ut_transform.problem import Problem, ValuesProblem
from tests.pallas_kernels.calls import described, gpu_interpreter, measured, truth, typed
from tests.pallas_kernels.shared import assert_close, full, slow
from tests.pallas_kernels.ut_transform.cases import Call, ValuesCall


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


def function_of(call):
    if isinstance(call, ValuesCall):
        return delta_values
    return ut_transform if call.k else ut_inverse


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
        ValuesCall(n=2, decay="token", kind="documents"),
        full(ValuesCall(n=2, decay="channel")),
        full(ValuesCall(n=1, state=False)),
    ],
    ids=str,
)
def test_xla(call):
    found, expected = measured(call, function_of(call), implementation="xla"), truth(call)
    assert_close(found[0], expected[0], 1e-5)
    assert_close(found[1], expected[1], 1e-4)


@pytest.mark.full
def test_rounded_operands():
    """Kills a wrong form for accelerators, whose matmuls take bfloat16."""
    call = Call(n=2, k=16, chunk=64, decay="token", dtype="bfloat16")
    with lowering_for("cuda"):
        found = measured(call, ut_transform)
    assert_close(found, truth(call), 1e-2)


WIDE: dict[str, Any] = {"b": 1, "h": 1, "k": 64, "dtype": "bfloat16"}
gpu, values_gpu = functools.partial(Call, chunk=64, **WIDE), functools.partial(ValuesCall, v=64, **WIDE)


def interpreted(call: Call):
    """mix, and of keys read, and of decays write and keep; and the gradients of all arrays."""
    arrays, cotangents = typed(call)
    run, interpret = api.BACKENDS["mosaic_gpu"], gpu_interpreter()
    assert run.objection(api.problem_of(*arrays, chunk=64)) is None
    outputs = run.forward(*arrays, chunk=64, interpret=interpret)
    like = jax.eval_shape(lambda *x: api.BACKENDS["xla"].forward(*x, chunk=64), *arrays)
    assert described(outputs) == described(like)
    cotangents += [None] * (5 - len(cotangents))
    return outputs, run.backward(*arrays, None, *cotangents, chunk=64, interpret=interpret)


@pytest.mark.parametrize(
    "call",
    [
        gpu(n=1, decay="token", kind="documents"),
        full(gpu(n=1, decay="channel", kind="documents")),
        slow(gpu(n=9, b=2, h=2)),
        full(gpu(n=2, decay="channel", kind="strong", h=2)),
        full(gpu(n=2, k=128, decay="token", h=2)),
        slow(gpu(n=1, decay="token", kind="strong")),
        full(gpu(n=2, k=0, h=2)),
        slow(gpu(n=1, k=0, kind="no beta")),
        slow(gpu(n=3, k=128, b=2)),
        slow(gpu(n=9, k=0, b=2, kind="no beta")),
    ],
    ids=str,
)
def test_mosaic_gpu(call):
    found, expected = interpreted(call), truth(call)
    for x, y in zip(found[0], expected[0], strict=False):
        if x is not None:
            assert_close(x, y, 4e-3)
    assert_close(found[1], expected[1], 8e-3)


@pytest.mark.parametrize("call", [gpu(n=1, kind="repeated"), full(gpu(n=1, kind="repeated", decay="token"))], ids=str)
def test_repeated_keys(call):
    """Kills: operands of the inverse in one bfloat16 number each (0.1 of mix here), and powers of A, which overflow.

    Gradients are products of rounded inverses, whose terms cancel here.
    """
    found, expected = interpreted(call), truth(call)
    assert_close(found[0][0], expected[0][0], 4e-3)
    assert_close(found[1], expected[1], 4e-2)


@pytest.mark.parametrize(
    "call",
    [
        values_gpu(n=2, decay="token"),
        full(values_gpu(n=2, decay="channel", kind="weak")),
        slow(values_gpu(n=9, h=2, state=False)),
        full(values_gpu(n=2, decay="channel", kind="strong")),
        slow(values_gpu(n=9, b=2, decay="channel", kind="documents")),
        slow(values_gpu(n=3, h=2, decay="channel", state=False)),
        slow(values_gpu(n=2, decay="channel", kind="documents", v=128)),
        slow(values_gpu(n=3, k=128, v=128, decay="token")),
        slow(values_gpu(n=2, b=2, v=128)),
    ],
    ids=str,
)
def test_values_by_mosaic_gpu(call):
    """With beta up to 2 states keep the errors of all chunks: 2^-9 for each rounding of mix, read, write, states, y."""
    arrays, cotangents = typed(call)
    kernels, options = values_api.BACKENDS["mosaic_gpu"], Options(return_state=False, save_states=True)
    y, _, saved = kernels.forward(*arrays, options=options, interpret=gpu_interpreter())
    like = jax.eval_shape(lambda *x: values_api.BACKENDS["xla"].forward(*x, options=options), *arrays)
    assert described((y, saved)) == described((like[0], like[2]))
    gradients = kernels.backward(*arrays, y, saved, *cotangents, options=options, interpret=gpu_interpreter())
    expected = truth(call)
    assert_close([y], expected[0][:1], 6e-3)
    assert_close(gradients, expected[1], 1e-2)


def test_objections():
    served: dict[str, Any] = {"b": 1, "t": 128, "h": 2, "k": 64}
    for of, problem, cases in (
        (
            api,
            Problem,
            [
                ({"chunk": 32}, "chunks are of 32 tokens, not 64"),
                ({"k": 96}, "key width 96 is not 64 or 128"),
                ({"decay": "channel", "k": 128}, "with decays per channel key width 128 is not 64"),
                ({"dtype": jnp.float32}, "not all bfloat16"),
                ({"h": 0}, "heads 0 are 0"),
            ],
        ),
        (
            values_api,
            functools.partial(ValuesProblem, v=64),
            [({"k": 32}, "key width 32"), ({"v": 32}, "value width 32")],
        ),
    ):
        objection = of.BACKENDS["mosaic_gpu"].objection
        for options, message in cases:
            assert message in (objection(problem(**served | options)) or "")
        assert objection(problem(**served)) is None


def test_errors():
    k, beta = jnp.zeros((1, 8, 2, 3), jnp.float32), jnp.zeros((1, 8, 2), jnp.float32)
    scores = jnp.zeros((1, 2, 2, 4, 4), jnp.float32)
    long, beta_64 = jnp.zeros((1, 64, 2, 3), jnp.float32), jnp.zeros((1, 64, 2), jnp.float32)
    for function, arrays, options, match in [
        (ut_transform, (k[0], beta), {}, r"k of shape \(8, 2, 3\) must be \(b, t, h, k\)"),
        (ut_transform, (k, beta), {"chunk_size": 3}, "t=8 of k must be a multiple of chunk_size=3"),
        (ut_transform, (k, beta[:, :4]), {"chunk_size": 4}, r"beta of shape \(1, 4, 2\) must be \(b, t, h\)"),
        (ut_transform, (k, beta, k[..., :2]), {"chunk_size": 4}, r"log_decay of shape \(1, 8, 2, 2\) must be"),
        (ut_transform, (k, beta), {"chunk_size": 4, "implementation": "fast"}, "must be one of"),
        (ut_inverse, (scores[..., :3],), {}, r"scores of shape \(1, 2, 2, 4, 3\) must be \(b, n, h, c, c\)"),
        (ut_inverse, (scores, beta[:, :4]), {}, r"beta of shape \(1, 4, 2\) must be \(b, n c, h\)=\(1, 8, 2\)"),
        (delta_values, (long, long[:, :32], beta_64), {}, r"v of \(1, 32, 2, 3\) float32 must be \(b, t, h, v\) of k"),
        (delta_values, (long, long, beta_64), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            function(*arrays, **options)
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        ut_transform(k, beta, chunk_size=4, implementation="mosaic_gpu")
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        delta_values(long, long, beta_64, implementation="mosaic_gpu")
    empty = ut_transform(k[:, :0], beta[:, :0])
    assert [x.shape for x in empty] == [(1, 0, 2, 64, 64), *[(1, 0, 2, 3)] * 4]
    assert ut_inverse(scores[:, :0]).shape == (1, 0, 2, 4, 4)
    assert [x.shape for x in delta_values(k[:, :0], k[:, :0], beta[:, :0])] == [(1, 0, 2, 3)] * 2
