"""The Hopper kernel, interpreted with races detected, against float64: values, states and all gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.delta_chunks import api
from pallas_kernels.delta_chunks.problem import Problem
from pallas_kernels.op import Options
from tests.pallas_kernels.delta_chunks.cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow


def measured(call: Call):
    """(y, last state), and the gradients of all arrays."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    arrays, (dy, dstate) = arrays_of(call)
    operands = *arrays, *[None] * (6 - len(arrays))
    run = api.BACKENDS["mosaic_gpu"]
    assert run.objection(api.problem_of(arrays[0], arrays[1], arrays[3])) is None
    options = Options(return_state=True, save_states=True)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    y, last, states = run.forward(*operands, options, interpret=interpret)
    like = jax.eval_shape(lambda *x: api.BACKENDS["xla"].forward(*x, options), *operands)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), (y, last, states)) == jax.tree.map(
        lambda x: (x.shape, x.dtype), like
    )
    gradients = run.backward(*operands, y, states, dy, dstate, options, interpret=interpret)
    return (y, last), gradients[: len(arrays)]


def case(n, **options):
    return Call(n=n, **{"b": 1, "h": 1, "k": 64, "v": 64, "chunk": 64, "dtype": "bfloat16"} | options)


@pytest.mark.parametrize(
    "call",
    [
        case(2, k=128, h=2),
        full(case(5, k=128, v=128)),
        full(case(1, v=256, state=False)),
        slow(case(17, b=2)),
        slow(case(3, v=192, h=2)),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: mix that is not transposed in one direction; chunks in the wrong order; keys or columns of another tile;
    a state saved after its chunk; a slot that is loaded again too early; a keep of another chunk; gradients of another
    piece of chunks."""
    found, expected = measured(call), truth(call)
    assert found[0][0].dtype == jnp.bfloat16
    assert_close(found[0], expected[0], 4e-3)
    assert_close(found[1], expected[1], 8e-3)


def test_objections():
    objection = api.BACKENDS["mosaic_gpu"].objection
    served: dict[str, Any] = {"b": 1, "t": 128, "h": 2, "k": 64, "v": 64}
    cases = [
        ({"chunk": 32}, "chunks are of 32 tokens, not 64"),
        ({"k": 96}, "key width 96 is not 64 or 128"),
        ({"v": 96}, "value width 96 is not a multiple of 64"),
        ({"dtype": jnp.float32}, "not all bfloat16"),
        ({"h": 0}, "heads 0 are 0"),
    ]
    for options, message in cases:
        assert message in (objection(Problem(**served | options)) or "")
    assert objection(Problem(**served)) is None
