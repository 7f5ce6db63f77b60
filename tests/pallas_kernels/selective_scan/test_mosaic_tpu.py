"""The TPU kernels, interpreted, against float64: values, states and all gradients."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.op import Options
from pallas_kernels.selective_scan import api, mosaic_tpu_layout, xla
from pallas_kernels.selective_scan.problem import Problem
from tests.pallas_kernels.selective_scan.cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow

TOLERANCE = {"float32": (1e-5, 1e-4), "bfloat16": (4e-3, 6e-3)}


def measured(call: Call):
    """(y, last state), and the gradients of all arrays."""
    arrays, (dy, dstate) = arrays_of(call)

    @jax.jit
    def run(arrays, dy, dstate):
        state = arrays[5] if call.state else None
        operands = *arrays[:5], xla.keep_of(call.segment_ids), state
        kernels, options = api.BACKENDS["mosaic_tpu"], Options(return_state=True, save_states=True)
        y, last, borders = kernels.forward(*operands, options, interpret=True)
        like = kernels.saved_like(*operands)
        assert (borders.shape, borders.dtype) == (like.shape, like.dtype)
        gradients = kernels.backward(*operands, borders, dy, dstate, options, interpret=True)
        return (y, last), gradients[: len(arrays)]

    return run(arrays, dy, dstate)


@pytest.mark.parametrize(
    "call",
    [
        Call(t=150, b=1, d=512, n=8, documents=True),
        full(Call(t=17, b=2, d=256, n=16, state=False)),
        full(Call(t=200, b=1, d=256, n=16, dtype="bfloat16")),
        slow(Call(t=1, b=1, d=256, n=8)),
        slow(Call(t=65, b=1, d=256, n=32, dtype="bfloat16", delta_dtype="bfloat16", documents=True)),
        slow(Call(t=300, b=1, d=256, n=8, decay=60.0, documents=True)),
    ],
    ids=str,
)
def test_values_and_gradients(call, monkeypatch):
    """Kills: a wrong carry between groups, turns or blocks, in either direction; b or c of another token or slot; a
    document that sees the one before it, where a is 0 too; padding that changes a state or has a gradient; blocks of
    channels that do not add up."""
    for name, value in (("BLOCK", 128), ("WIDTH", 256), ("TURN", 8)):
        monkeypatch.setattr(mosaic_tpu_layout, name, value)
    expected, found = truth(call), measured(call)
    values, gradients = TOLERANCE[call.dtype]
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.slow
def test_whole_turns(monkeypatch):
    """Kills: groups of a turn in the wrong order."""
    monkeypatch.setattr(mosaic_tpu_layout, "BLOCK", 128)
    call = Call(t=130, b=1, d=256, n=8, documents=True)
    assert_close(measured(call), truth(call), 1e-4)


def test_widths_of_a_step_and_what_is_refused():
    """Kills: a step that reads part of a tile of lanes; widths that do not share out the channels."""
    widths = {1024: 1024, 1536: 768, 2048: 1024, 5120: 1024, 640: 640, 256: 256}
    assert {d: mosaic_tpu_layout._widths(d)[-1] for d in widths} == widths
    problem = {"b": 1, "t": 8, "d": 256, "n": 16}
    assert mosaic_tpu_layout.objection(Problem(**problem)) is None
    for changed, match in [({"d": 1408}, "1408 channels"), ({"n": 4}, "none of"), ({"dtype": jnp.float16}, "float16")]:
        assert match in (mosaic_tpu_layout.objection(Problem(**problem | changed)) or "")
