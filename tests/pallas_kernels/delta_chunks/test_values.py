"""The recurrence over chunks and the general delta rule, by XLA and interpreted Hopper kernels, against float64.

Kills: mix not transposed in one direction; chunks in the wrong order; keys or columns of another tile or head; a state
saved after its chunk; a slot that is loaded again too early; a keep of another chunk; products that reach a wrong
token; a cotangent of the last state that is lost; padding that changes the last state.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.delta_chunks import api, delta_chunks, general_api, general_delta_rule, reference
from pallas_kernels.delta_chunks.problem import GeneralProblem, Problem
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.op import Options
from tests.pallas_kernels.calls import gpu_interpreter, measured, truth, typed
from tests.pallas_kernels.delta_chunks.cases import Call, GeneralCall, interpreted
from tests.pallas_kernels.shared import assert_close, full, slow


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


def test_general_reference_by_hand():
    """Kills: a removal that reads the state after its decay, or after the write of its token.

    k = v = 1, S_0 = 4. Token 0: decay 1/2, u 3, z -1/4, k 2, v 5: S = 2 - 3 + 10 = 9, y = 9 * 2 = 18.
    Token 1: decay 0, u 1, z 1, k 1, v -2: S = 0 + 9 - 2 = 7, y = -7.
    """
    tokens = [2, -1], [2, 1], [5, -2], [3, 1], [-0.25, 1], [np.log(0.5), -np.inf]
    arrays = (jnp.asarray(x, jnp.float32).reshape(1, 2, 1, 1) for x in tokens)
    y, state = reference.general_recurrence(*arrays, initial_state=jnp.full((1, 1, 1, 1), 4.0))
    np.testing.assert_allclose((*y.ravel(), *state.ravel()), [18, -7, 7], rtol=1e-6)


WIDE: dict[str, Any] = {"b": 1, "h": 1, "k": 64, "v": 64, "dtype": "bfloat16"}
gpu, general_gpu = functools.partial(Call, chunk=64, **WIDE), functools.partial(GeneralCall, **WIDE)


@pytest.mark.parametrize(
    ("implementation", "call"),
    [
        ("xla", Call(n=3)),
        full("xla", Call(n=1, state=False, last=False)),
        slow("xla", Call(n=5, state=False)),
        full("xla", Call(n=4, k=16, v=32, chunk=64, dtype="bfloat16", last=False)),
        ("xla", GeneralCall(t=150)),
        full("xla", GeneralCall(t=1)),
        slow("xla", GeneralCall(t=64, state=False, last=False)),
        full("xla", GeneralCall(t=300, k=16, v=32, dtype="bfloat16")),
        ("mosaic_gpu", gpu(n=2, k=128, h=2)),
        full("mosaic_gpu", gpu(n=5, k=128, v=128)),
        full("mosaic_gpu", gpu(n=1, v=256, state=False)),
        slow("mosaic_gpu", gpu(n=17, b=2)),
        slow("mosaic_gpu", gpu(n=3, v=192, h=2)),
        full("mosaic_gpu", general_gpu(t=150, h=2, documents=True)),
        slow("mosaic_gpu", general_gpu(t=64, state=False)),
        slow("mosaic_gpu", general_gpu(t=400, b=2, h=2)),
    ],
    ids=str,
)
def test_values_and_gradients(implementation, call):
    function = general_delta_rule if isinstance(call, GeneralCall) else delta_chunks
    if implementation == "xla":
        found = measured(call, function, implementation="xla")
    else:
        found = interpreted(call, gpu_interpreter())
        assert found[0][0].dtype == jnp.bfloat16
    rounding = (5e-3, 1e-2) if isinstance(call, GeneralCall) else (4e-3, 8e-3)
    expected, (values, gradients) = truth(call), (1e-5, 1e-4) if call.dtype == "float32" else rounding
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.full
def test_rounded_operands():
    """Kills a wrong form for accelerators, whose matmuls take bfloat16."""
    small: dict[str, Any] = {"k": 16, "v": 32, "dtype": "bfloat16"}
    for call, function in (
        (Call(n=4, chunk=64, **small), delta_chunks),
        (GeneralCall(t=130, **small), general_delta_rule),
    ):
        with lowering_for("cuda"):
            found = measured(call, function)
        assert_close(found, truth(call), 1e-2)


def test_states_are_those_before_every_chunk():
    """Kills: states after the chunks, or in another order."""
    arrays = typed(Call(n=3, b=1))[0]
    states = api.BACKENDS["xla"].forward(*arrays, Options(return_state=True, save_states=True))[2]
    np.testing.assert_array_equal(states[:, 0], arrays[5])
    x, read, write, mix, keep, state = arrays
    first = reference.recurrence(x[:, :8], read[:, :8], write[:, :8], mix[:, :1], keep[:, :1], initial_state=state)
    assert_close(states[:, 1], first[1], 1e-5)


SERVED: dict[str, Any] = {"b": 1, "t": 128, "h": 2, "k": 64, "v": 64}


@pytest.mark.parametrize(
    ("of", "problem", "cases"),
    [
        (
            api,
            Problem,
            [
                ({"chunk": 32}, "chunks are of 32 tokens, not 64"),
                ({"k": 96}, "key width 96 is not 64 or 128"),
                ({"v": 96}, "value width 96 is not a multiple of 64"),
                ({"dtype": jnp.float32}, "not all bfloat16"),
                ({"h": 0}, "heads 0 are 0"),
            ],
        ),
        (
            general_api,
            GeneralProblem,
            [
                ({"k": 128}, "key and value widths 128, 64 are not 64"),
                ({"dtype": jnp.float32}, "not all bfloat16"),
                ({"h": 0}, "heads 0 are 0"),
            ],
        ),
    ],
    ids=("chunks", "general"),
)
def test_objections(of, problem, cases):
    objection = of.BACKENDS["mosaic_gpu"].objection
    for options, message in cases:
        assert message in (objection(problem(**SERVED | options)) or "")
    assert objection(problem(**SERVED)) is None


def test_errors():
    shapes = (1, 8, 2, 5), (1, 8, 2, 3), (1, 2, 2, 4, 4), (1, 2, 2, 3)
    x, read, mix, keep = (jnp.zeros(s, jnp.float32) for s in shapes)
    for arrays, options, match in [
        ((x[:, :, 0], read, read, mix, keep), {}, r"must be \(b, t, h, v\), \(b, t, h, k\), \(b, t, h, k\)"),
        ((x, read, read[:, :4], mix, keep), {}, r"\(1, 8, 2, 3\), \(1, 4, 2, 3\) must be"),
        ((x[:, :7], read[:, :7], read[:, :7], mix, keep), {}, "t=7 of x must be a multiple of c=4"),
        ((x, read, read, mix[:, :1], keep), {}, r"mix of shape \(1, 1, 2, 4, 4\) must be .*\(1, 2, 2, 4, 4\)"),
        ((x, read, read, mix, keep[..., :2]), {}, r"keep of shape \(1, 2, 2, 2\) must be .*\(1, 2, 2, 3\)"),
        ((x, read, read, mix.astype(jnp.bfloat16), keep), {}, "must be equal; cast"),
        ((x, read, read, mix, keep), {"initial_state": np.zeros((1, 2, 5, 3))}, "initial_state of shape"),
        ((x, read, read, mix, keep), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            delta_chunks(*arrays, **options)
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        delta_chunks(x, read, read, mix, keep, implementation="mosaic_gpu")
    empty = (x[:, :0], read[:, :0], read[:, :0], mix[:, :0], keep[:, :0])
    y, state = delta_chunks(*empty, return_state=True)
    assert (y.shape, state.shape) == ((1, 0, 2, 5), (1, 2, 3, 5))


def test_errors_of_the_general_rule():
    q, v = jnp.zeros((1, 8, 2, 3)), jnp.zeros((1, 8, 2, 5))
    for arrays, options, match in [
        ((q, q, v[:, :, 0], q, q, q), {}, r"must be \(b, t, h, k\), \(b, t, h, v\)"),
        ((q, q, v, q, q, q[..., 0]), {}, r"log_decay of shape \(1, 8, 2\) must be \(b, t, h, k\)=\(1, 8, 2, 3\)"),
        ((q, q, v, q, q.astype(jnp.bfloat16), q), {}, "must be equal; cast them"),
        ((q, q, v, q, q, q), {"initial_state": jnp.zeros((1, 2, 5, 3))}, "initial_state of shape"),
        ((q, q, v, q, q, q), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            general_delta_rule(*arrays, **options)
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        general_delta_rule(q, q, v, q, q, q, implementation="mosaic_gpu")
    for t in (0, 8):
        arrays = (x[:, :t] for x in (q, q, v, q, q, q))
        y, state = jax.eval_shape(lambda *x: general_delta_rule(*x, return_state=True), *arrays)
        assert (y.shape, state.shape) == ((1, t, 2, 5), (1, 2, 3, 5))
