"""The Hopper kernels, interpreted with races detected, against float64: values, states and all gradients."""

import re

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.op import Options
from pallas_kernels.wkv4 import Wkv4State, api
from tests.pallas_kernels.aot import absent_devices
from tests.pallas_kernels.hopper import compile_for_hopper
from tests.pallas_kernels.shared import assert_close, full, slow
from tests.pallas_kernels.wkv4.cases import Call, operands_of, truth


def measured(call: Call):
    """As `truth`."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    operands, (dy, dstate) = operands_of(call)
    run = api.BACKENDS["mosaic_gpu"]
    options = Options(return_state=True, save_states=True)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    y, last, saved = run.forward(*operands, options, interpret=interpret)
    assert run.objection(api.problem_of(operands[0])) is None
    like = run.saved_like(*operands)
    assert (saved.shape, saved.dtype) == (like.shape, like.dtype)
    *gradients, dstart = run.backward(*operands, last.max, saved, dy, dstate, options, interpret=interpret)
    found = (*gradients, *(() if dstart is None else dstart[:2]))
    return (y, last.num, last.den), last.max, found


def case(t, **options):
    return Call(t=t, **{"b": 1, "d": 256, "dtype": "bfloat16"} | options)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    """Two chunks, so that short sequences have several pieces, which are joined two at a time."""
    monkeypatch.setattr("pallas_kernels.wkv4.mosaic_gpu_layout.LEAST_CHUNKS", 2)
    monkeypatch.setattr("pallas_kernels.wkv4.mosaic_gpu_layout.JOINED", 2)


@pytest.mark.parametrize(
    "call",
    [
        case(102, documents=True, size=3.0),
        full(case(128, dtype="float32", size=5.0)),
        full(case(1, state=False)),
        full(case(133, b=2, swing=80.0)),
        slow(case(200, d=512, state=False, documents=True)),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: pieces that are joined in the wrong order or with the decay of another length; sums that are saved or read
    one chunk off; a document that sees the one before it, within a piece or over several; padding that decays a state
    or adds to dw; a scale that overflows; a last state whose cotangent is lost."""
    found, expected = measured(call), truth(call)
    assert [x.dtype for x in jax.tree.leaves(found)] == [jnp.dtype(x) for x in _dtypes(call)]
    values, gradients = (4e-3, 8e-3) if call.dtype == "bfloat16" else (1e-5, 1e-4)
    assert_close(found[0][0], expected[0][0], values)
    assert_close((found[0][1:], found[1]), (expected[0][1:], expected[1]), 1e-4 if call.swing else 1e-5)
    assert_close(found[2], expected[2], gradients)


def _dtypes(call: Call):
    """Those of y, num, den, max and the gradients."""
    return [call.dtype, *["float32"] * 3, *call.dtypes[: 4 + 2 * call.state]]


def test_pieces_fill_the_device(monkeypatch):
    """Kills: rows that are cut where their blocks fill the device, which costs bytes, or that stay whole where not."""
    from pallas_kernels.wkv4 import mosaic_gpu_layout as layout

    monkeypatch.setattr(layout, "LEAST_CHUNKS", 4)
    with lowering_for("cuda", multiprocessors=132):
        found = [
            layout.chunks_of_a_piece(*size) for size in ((4, 512, 1024), (8, 512, 8192), (1, 512, 768), (1, 3, 256))
        ]
    assert found == [16, 512, 4, 3]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_spills_with_documents_and_states(dtype, capfd, monkeypatch):
    """Kills registers that only documents, padding or a first state cost, none of which a workload has."""
    absent_devices("h100", monkeypatch)
    operands, (dy, dstate) = operands_of(case(200, b=2, documents=True, dtype=dtype))
    options, run = Options(return_state=True, save_states=True), api.BACKENDS["mosaic_gpu"]

    def both(k, v, w, u, keep, num, den, largest, dy, dstate):
        operands = k, v, w, u, keep, Wkv4State(num, den, largest)
        y, last, saved = run.forward(*operands, options)
        return y, last, run.backward(*operands, last.max, saved, dy, Wkv4State(*[dstate] * 3), options)

    *arrays, state = operands
    report = compile_for_hopper(both, *arrays, *state, dy, dstate.num, capfd=capfd, monkeypatch=monkeypatch)
    names = set(re.findall(r"Function properties for wkv4_(\w+?)_mosaic", report))
    assert names == {"pieces", "forward", "cotangents", "gradients"}
    assert set(re.findall(r"(\d+) bytes spill", report)) == {"0"}
    assert not re.findall(r"C75\d\d", report)
