"""The Hopper kernels, interpreted with races detected, against float64: values, states and all gradients."""

import re

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.op import Options
from pallas_kernels.selective_scan import api, xla
from tests.pallas_kernels.aot import absent_devices
from tests.pallas_kernels.hopper import compile_for_hopper
from tests.pallas_kernels.selective_scan.cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow


def measured(call: Call):
    """(y, last state), and the gradients of all arrays."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    (x, delta, a, b, c, *state), (dy, dstate) = arrays_of(call)
    operands = x, delta, a, b, c, xla.keep_of(call.segment_ids), state[0] if state else None
    run = api.BACKENDS["mosaic_gpu"]
    options = Options(return_state=True, save_states=True)
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    y, last, saved = run.forward(*operands, options, interpret=interpret)
    assert run.objection(api.problem_of(x, delta, a)) is None
    like = run.saved_like(*operands)
    assert (saved.shape, saved.dtype) == (like.shape, like.dtype)
    gradients = run.backward(*operands, saved, dy, dstate, options, interpret=interpret)
    return (y, last), gradients[: len(arrays_of(call)[0])]


def case(t, **options):
    return Call(t=t, **{"b": 1, "d": 32, "n": 16, "dtype": "bfloat16"} | options)


@pytest.mark.parametrize(
    "call",
    [
        case(70, d=64, documents=True),
        full(case(1, state=False)),
        full(case(17, n=8, delta_dtype="bfloat16")),
        full(case(65, b=2, decay=60.0, documents=True)),
        slow(case(200, d=96, state=False, n=8)),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: columns of another token or block; a state that is saved or read one chunk off; a gradient of delta
    without that of the decay; a document that sees the one before it; padding that changes the last state."""
    found, expected = measured(call), truth(call)
    assert [x.dtype for x in jax.tree.leaves(found)] == [jnp.dtype(x) for x in _dtypes(call)]
    assert_close(found[0], expected[0], 4e-3)
    assert_close(found[1], expected[1], 8e-3)


def _dtypes(call: Call):
    """Those of y, the last state and the gradients."""
    return [call.dtype, "float32", *call.dtypes[: 5 + call.state]]


@pytest.mark.slow
@pytest.mark.parametrize("delta_dtype", ["float32", "bfloat16"])
def test_no_spills_with_documents_and_states(delta_dtype, capfd, monkeypatch):
    """Kills registers that only documents or a first state cost, neither of which a workload has."""
    absent_devices("h100", monkeypatch)
    call = case(200, d=64, b=2, documents=True, delta_dtype=delta_dtype)
    (x, delta, a, b, c, state), (dy, dstate) = arrays_of(call)
    options, run = Options(return_state=True, save_states=True), api.BACKENDS["mosaic_gpu"]

    def both(x, delta, a, b, c, keep, state, dy, dstate):
        operands = x, delta, a, b, c, keep, state
        y, last, saved = run.forward(*operands, options)
        return y, last, run.backward(*operands, saved, dy, dstate, options)

    arrays = x, delta, a, b, c, xla.keep_of(call.segment_ids), state, dy, dstate
    report = compile_for_hopper(both, *arrays, capfd=capfd, monkeypatch=monkeypatch)
    assert set(re.findall(r"Function properties for selective_scan_(\w+?)_mosaic", report)) == {"forward", "backward"}
    assert set(re.findall(r"(\d+) bytes spill", report)) == {"0"}
    assert not re.findall(r"C75\d\d", report)
