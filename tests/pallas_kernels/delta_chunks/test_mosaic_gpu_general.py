"""Hopper kernels of the general delta rule, interpreted with races detected, against float64: values and gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.delta_chunks import general_api as api
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.op import Options
from tests.pallas_kernels.delta_chunks.general_cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow


def measured(call: Call):
    """(y, last state), and the gradients of all arrays; tokens of padding are zeros."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    arrays, (dy, dstate) = arrays_of(call)
    pad = lambda x: np.pad(x, ((0, 0), (0, -call.t % 64), (0, 0), (0, 0)))  # noqa: E731
    operands = *map(pad, arrays[:6]), arrays[6] if call.state else None
    run = api.BACKENDS["mosaic_gpu"]
    assert run.objection(api.problem_of(operands[1], operands[2])) is None
    options = Options(return_state=True, save_states=True)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    y, last, saved = run.forward(*operands, options, interpret=interpret)
    like = jax.eval_shape(lambda *x: api.BACKENDS["xla"].forward(*x, options), *operands)
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
    assert shapes((y, last, saved)) == shapes(like)
    gradients = run.backward(*operands, saved, pad(dy), dstate, options, interpret=interpret)
    cut = [x[:, : call.t] for x in gradients[:6]]
    return (y[:, : call.t], last), (*cut, *gradients[6:])[: len(arrays)]


def case(t, **options):
    return Call(t=t, **{"b": 1, "h": 1, "k": 64, "v": 64, "dtype": "bfloat16"} | options)


@pytest.mark.parametrize(
    "call",
    [case(150, h=2, documents=True), full(case(64, state=False)), slow(case(400, b=2, h=2))],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: a product that is not transposed in one direction; chunks in the wrong order; tokens of another head; a
    state saved after its chunk; a slot that is loaded again too early; a keep of another chunk."""
    found, expected = measured(call), truth(call)
    assert found[0][0].dtype == jnp.bfloat16
    assert_close(found[0], expected[0], 5e-3)
    assert_close(found[1], expected[1], 1e-2)


def test_objections():
    objection = api.BACKENDS["mosaic_gpu"].objection
    served: dict[str, Any] = {"b": 1, "t": 128, "h": 2, "k": 64, "v": 64}
    cases = [
        ({"k": 128}, "key and value widths 128, 64 are not 64"),
        ({"dtype": jnp.float32}, "not all bfloat16"),
        ({"h": 0}, "heads 0 are 0"),
    ]
    for options, message in cases:
        assert message in (objection(GeneralProblem(**served | options)) or "")
    assert objection(GeneralProblem(**served)) is None
