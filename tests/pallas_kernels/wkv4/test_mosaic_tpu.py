"""The TPU kernels, interpreted, against float64: values, states and all gradients."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.op import Options
from pallas_kernels.wkv4 import api, mosaic_tpu_layout
from pallas_kernels.wkv4.problem import Problem
from tests.pallas_kernels.shared import assert_close, full, slow
from tests.pallas_kernels.wkv4.cases import Call, operands_of, truth


def measured(call: Call):
    """As `truth`."""
    run, options = api.BACKENDS["mosaic_tpu"], Options(return_state=True, save_states=True)

    @jax.jit
    def both(operands, dy, dstate):
        y, last, saved = run.forward(*operands, options, interpret=True)
        gradients = run.backward(*operands, last.max, saved, dy, dstate, options, interpret=True)
        return y, last, saved, gradients

    operands, (dy, dstate) = operands_of(call)
    y, last, saved, (*gradients, dstart) = both(operands, dy, dstate)
    like = run.saved_like(*operands)
    assert (saved.shape, saved.dtype) == (like.shape, like.dtype)
    found = (*gradients, *(() if dstart is None else dstart[:2]))
    return (y, last.num, last.den), last.max, found


@pytest.mark.parametrize(
    "call",
    [
        Call(t=150, b=2, d=768, documents=True, size=3.0),
        full(Call(t=1, b=1, d=512, state=False)),
        full(Call(t=133, b=1, d=1280, swing=80.0)),
        full(Call(t=64, b=1, d=512, dtype="bfloat16")),
        slow(Call(t=300, b=1, d=2048, state=False, documents=True, dtype="bfloat16")),
    ],
    ids=str,
)
def test_values_and_gradients(call, monkeypatch):
    """Kills: a wrong carry between turns or blocks, in either direction; channels of another tile or step; a document
    that sees the one before it; padding that decays a state or adds to dw; a scale that overflows; a last state whose
    cotangent is lost."""
    monkeypatch.setattr(mosaic_tpu_layout, "BLOCK", 64)
    monkeypatch.setattr(mosaic_tpu_layout, "TURN", 16)
    found, expected = measured(call), truth(call)
    values, gradients = (1e-4 if call.swing else 1e-5, 1e-4) if call.dtype == "float32" else (4e-3, 8e-3)
    assert_close(found[:2], expected[:2], values)
    assert_close(found[2], expected[2], gradients)


def test_widths_of_a_step_and_what_is_refused():
    """Kills: a step that reads part of a tile of lanes; widths that do not share out the channels."""
    widths = {512: 512, 768: 768, 1024: 1024, 2048: 1024, 2560: 640, 5120: 1024}
    assert {d: mosaic_tpu_layout._width(d) for d in widths} == widths
    assert mosaic_tpu_layout.objection(Problem(b=1, t=8, d=2560)) is None
    for changed, match in [
        ({"d": 256}, "256 channels"),
        ({"d": 1408}, "1408 channels"),
        ({"dtype": jnp.float16}, "float16"),
    ]:
        assert match in (mosaic_tpu_layout.objection(Problem(**{"b": 1, "t": 8, "d": 512} | changed)) or "")
