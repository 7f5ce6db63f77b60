"""wkv4 by XLA and by interpreted kernels, against float64: values, states and all gradients.

Kills: a carry between turns, blocks or pieces in the wrong order or with the decay of another length; channels of
another tile or step; a document that sees the one before it; padding that decays a state or adds to dw; a scale that
overflows; a last state whose cotangent is lost.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.op import Options
from pallas_kernels.wkv4 import Wkv4State, api, mosaic_tpu_layout, reference, wkv4, xla
from pallas_kernels.wkv4.problem import Problem
from tests.pallas_kernels.aot import absent_devices
from tests.pallas_kernels.calls import gpu_interpreter
from tests.pallas_kernels.hopper import compile_for_hopper
from tests.pallas_kernels.shared import assert_close, full, slow
from tests.pallas_kernels.wkv4.cases import Call, interpreted, measured, operands_of, truth

GPU_LAYOUT = "pallas_kernels.wkv4.mosaic_gpu_layout"


def test_reference_by_hand():
    """Kills: a decay between neighbours, a bonus in the state, a document that sees the one before it."""
    k, v = np.log(np.float32([[2, 3, 5]]))[..., None], np.float32([[7, 11, 13]])[..., None]
    w, u = np.log(np.float32([4])), np.log(np.float32([10]))
    y, state = jax.jit(reference.recurrence)(k, v, w, u)
    expected = [7, (2 * 7 + 30 * 11) / 32, (2 / 4 * 7 + 3 * 11 + 50 * 13) / (2 / 4 + 3 + 50)]
    np.testing.assert_allclose(np.ravel(y), expected, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(state.den * np.exp(state.max)), 2 / 16 + 3 / 4 + 5, rtol=1e-6)
    y, state = jax.jit(reference.recurrence)(k, v, w, u, segment_ids=np.int32([[4, 4, 9]]))
    np.testing.assert_allclose(np.ravel(y), [*expected[:2], 13], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(state.den * np.exp(state.max)), 5, rtol=1e-6)


gpu = functools.partial(Call, b=1, d=256, dtype="bfloat16")
tpu = functools.partial(Call, b=1, d=512)


@pytest.mark.parametrize(
    ("implementation", "call"),
    [
        ("xla", Call(t=150, documents=True, size=30.0)),
        full("xla", Call(t=1, state=False)),
        full("xla", Call(t=131, swing=80.0)),
        full("xla", Call(t=200, dtype="bfloat16", documents=True)),
        full("mosaic_gpu", gpu(t=102, documents=True, size=3.0)),
        full("mosaic_gpu", gpu(t=128, dtype="float32", size=5.0)),
        slow("mosaic_gpu", gpu(t=1, state=False)),
        slow("mosaic_gpu", gpu(t=133, b=2, swing=80.0)),
        slow("mosaic_gpu", gpu(t=200, d=512, state=False, documents=True)),
        full("mosaic_tpu", tpu(t=150, b=2, d=768, documents=True, size=3.0)),
        slow("mosaic_tpu", tpu(t=1, state=False)),
        slow("mosaic_tpu", tpu(t=133, d=1280, swing=80.0)),
        full("mosaic_tpu", tpu(t=64, dtype="bfloat16")),
        slow("mosaic_tpu", tpu(t=300, d=2048, state=False, documents=True, dtype="bfloat16")),
    ],
    ids=str,
)
def test_values_and_gradients(implementation, call, monkeypatch):
    # Pieces of two chunks, joined two at a time; blocks of four turns.
    for name, value in (("LEAST_CHUNKS", 2), ("JOINED", 2)):
        monkeypatch.setattr(f"{GPU_LAYOUT}.{name}", value)
    for name, value in (("BLOCK", 64), ("TURN", 16)):
        monkeypatch.setattr(mosaic_tpu_layout, name, value)
    if implementation == "xla":
        found = measured(call, implementation="xla")
    else:
        found = interpreted(call, implementation, gpu_interpreter() if implementation == "mosaic_gpu" else True)
    dtypes = [call.dtype, *["float32"] * 3, *call.dtypes[: 4 + 2 * call.state]]
    assert [x.dtype for x in jax.tree.leaves(found)] == [jnp.dtype(x) for x in dtypes]
    expected = truth(call)
    # A float32 exponent of 100 is off by up to 4e-6, and so is a weight.
    states = 1e-4 if call.swing or call.size > 10 else 1e-5
    values, gradients = (states, 1e-4) if call.dtype == "float32" else (4e-3, 8e-3)
    assert_close(found[0][0], expected[0][0], values)
    assert_close((found[0][1:], found[1]), (expected[0][1:], expected[1]), states)
    assert_close(found[2], expected[2], gradients)


def test_many_tokens_at_once(monkeypatch):
    """Kills a wrong form for accelerators, which does not run on a CPU."""
    monkeypatch.setattr(xla, "in_turn", xla.by_tree)
    call = Call(t=100, documents=True, size=5.0)
    with lowering_for("cuda"):
        found = measured(call, implementation="xla")
    assert_close(found, truth(call), 1e-4)


def test_backward_of_the_table():
    """Kills: a gradient lost between `api.py` and `xla.py`, of a state or of none."""
    for call in (Call(t=20, documents=True), Call(t=5, state=False)):
        operands, cotangents = operands_of(call)
        *found, start = jax.jit(xla.backward)(*operands, *cotangents)
        assert_close([*found, *((start.num, start.den) if start else ())], truth(call)[2], 1e-4)


def test_pieces_fill_the_device(monkeypatch):
    """Kills: rows that are cut where their blocks fill the device, which costs bytes, or that stay whole where not."""
    from pallas_kernels.wkv4 import mosaic_gpu_layout as layout

    monkeypatch.setattr(layout, "LEAST_CHUNKS", 4)
    with lowering_for("cuda", multiprocessors=132):
        sizes = ((4, 512, 1024), (8, 512, 8192), (1, 512, 768), (1, 3, 256))
        assert [layout.chunks_of_a_piece(*size) for size in sizes] == [16, 512, 4, 3]


def test_widths_of_a_step_and_objections():
    """Kills a TPU step that reads part of a tile of lanes; widths that do not divide the channels; a name that falls
    back."""
    widths = {512: 512, 768: 768, 1024: 1024, 2048: 1024, 2560: 640, 5120: 1024}
    assert {d: mosaic_tpu_layout._width(d) for d in widths} == widths
    assert mosaic_tpu_layout.objection(Problem(b=1, t=8, d=2560)) is None
    for changed, match in [
        ({"d": 256}, "256 channels"),
        ({"d": 1408}, "1408 channels"),
        ({"dtype": jnp.float16}, "float16"),
    ]:
        assert match in (mosaic_tpu_layout.objection(Problem(**{"b": 1, "t": 8, "d": 512} | changed)) or "")
    k, w = np.zeros((1, 3, 100), np.float32), np.zeros((100,), np.float32)
    with pytest.raises(NotImplementedError, match="mosaic_tpu: 100 channels have no divisor"):
        wkv4(k, k, w, w, implementation="mosaic_tpu")
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: channels 100 are .*; use implementation='xla'"):
        wkv4(k, k, w, w, implementation="mosaic_gpu")


def test_errors():
    k, w = np.zeros((1, 3, 4), np.float32), np.zeros((4,), np.float32)
    for arrays, options, match in [
        ((k, k[:, :2], w, w), {}, r"\(1, 3, 4\), \(1, 2, 4\) must both be \(b, t, d\)"),
        ((k, k.astype(jnp.bfloat16), w, w), {}, "must be equal; cast"),
        ((k, k, w[:3], w), {}, r"\(3,\), \(4,\) must both be \(d,\)=\(4,\)"),
        ((k, k, w, w), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((k, k, w, w), {"initial_state": Wkv4State(*[jnp.zeros((1, 3))] * 3)}, "initial_state.num of shape"),
        ((k, k, w, w), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            wkv4(*arrays, **options)
    y, state = jax.eval_shape(functools.partial(wkv4, return_state=True), k[:, :0], k[:, :0], w, w)
    assert (y.shape, state.num.shape) == ((1, 0, 4), (1, 4))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_spills_with_documents_and_states(dtype, capfd, monkeypatch):
    """Kills registers that only documents, padding or a first state cost, none of which a workload has."""
    absent_devices("h100", monkeypatch)
    for name, value in (("LEAST_CHUNKS", 2), ("JOINED", 2)):
        monkeypatch.setattr(f"{GPU_LAYOUT}.{name}", value)
    operands, (dy, dstate) = operands_of(gpu(t=200, b=2, documents=True, dtype=dtype))
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
