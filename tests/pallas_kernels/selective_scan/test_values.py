"""The selective scan by XLA and by interpreted kernels, against float64: values, states and all gradients.

Kills: a carry between chunks, groups, turns or blocks of the wrong direction; b or c of another token, slot or block; a
document that sees the one before it, where a is 0 too; padding that changes a state or has a gradient; a gradient of
delta without that of the decay.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.op import Options
from pallas_kernels.selective_scan import api, mosaic_tpu_layout, reference, selective_scan, xla
from pallas_kernels.selective_scan.problem import Problem
from tests.pallas_kernels.aot import absent_devices
from tests.pallas_kernels.calls import gpu_interpreter, measured, truth, typed
from tests.pallas_kernels.hopper import compile_for_hopper
from tests.pallas_kernels.selective_scan.cases import Call, interpreted
from tests.pallas_kernels.shared import assert_close, full, slow


def test_reference_by_hand():
    """Kills: a decay that acts after the token is written, delta that is not a factor of x, a document that sees the
    one before it.

    d = 1, n = 2, a = log(1/2, 1/4). h_0 = (8, 4); deltas 1 and 2.
    h_1 = (4, 1) + 1 * 3 (1, 2) = (7, 7), y_1 = 7 - 7 = 0.
    h_2 = (7/4, 7/16) + 2 * 1 (2, 0) = (5.75, 0.4375), y_2 = 2 * 0.4375.
    """
    x, delta = (np.float32(z).reshape(1, 2, 1) for z in ([3, 1], [1, 2]))
    a = np.log(np.float32([[0.5, 0.25]]))
    b, c = (np.float32(z)[None] for z in ([[1, 2], [2, 0]], [[1, -1], [0, 2]]))
    h0 = np.float32([8, 4]).reshape(1, 1, 2)
    recurrence = jax.jit(reference.recurrence)
    y, h = recurrence(x, delta, a, b, c, initial_state=h0)
    np.testing.assert_allclose((*y.ravel(), *h.ravel()), [0, 0.875, 5.75, 0.4375], rtol=1e-6, atol=1e-6)
    y, h = recurrence(x, delta, a, b, c, initial_state=h0, segment_ids=np.int32([[4, 5]]))
    np.testing.assert_allclose((*y.ravel(), *h.ravel()), [0, 0, 4, 0], atol=1e-6)


gpu = functools.partial(Call, b=1, d=32, n=16, dtype="bfloat16")
tpu = functools.partial(Call, b=1, d=256, n=8)


@pytest.mark.parametrize(
    ("implementation", "call"),
    [
        ("xla", Call(t=150, documents=True)),
        full("xla", Call(t=1, state=False)),
        full("xla", Call(t=131, n=16, decay=60.0)),
        full("xla", Call(t=200, dtype="bfloat16", delta_dtype="bfloat16", documents=True)),
        full("mosaic_gpu", gpu(t=70, d=64, documents=True)),
        slow("mosaic_gpu", gpu(t=1, state=False)),
        ("mosaic_gpu", gpu(t=17, n=8, delta_dtype="bfloat16")),
        full("mosaic_gpu", gpu(t=65, b=2, decay=60.0, documents=True)),
        slow("mosaic_gpu", gpu(t=200, d=96, state=False, n=8)),
        ("mosaic_tpu", tpu(t=150, d=512, documents=True)),
        slow("mosaic_tpu", tpu(t=17, b=2, n=16, state=False)),
        full("mosaic_tpu", tpu(t=200, n=16, dtype="bfloat16")),
        slow("mosaic_tpu", tpu(t=1)),
        slow("mosaic_tpu", tpu(t=65, n=32, dtype="bfloat16", delta_dtype="bfloat16", documents=True)),
        slow("mosaic_tpu", tpu(t=300, decay=60.0, documents=True)),
    ],
    ids=str,
)
def test_values_and_gradients(implementation, call, monkeypatch):
    if implementation == "xla":
        found = measured(call, selective_scan, implementation="xla")
    elif implementation == "mosaic_gpu":
        found = interpreted(call, implementation, gpu_interpreter())
    else:
        for name, value in (("BLOCK", 128), ("WIDTH", 256), ("TURN", 8)):
            monkeypatch.setattr(mosaic_tpu_layout, name, value)
        found = interpreted(call, implementation, interpret=True)
    dtypes = [call.dtype, "float32", *call.dtypes[: 5 + call.state]]
    assert [x.dtype for x in jax.tree.leaves(found)] == [jnp.dtype(x) for x in dtypes]
    rounding = (4e-3, 6e-3) if implementation == "mosaic_tpu" else (4e-3, 8e-3)
    expected, (values, gradients) = truth(call), (1e-5, 1e-4) if call.dtype == "float32" else rounding
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.parametrize(
    ("platform", "call"),
    [("tpu", Call(t=100, documents=True)), full("cuda", Call(t=17, n=16, state=False))],
    ids=str,
)
def test_many_tokens_at_once(platform, call):
    """Kills a wrong form for accelerators, in several chunks (TPU) or one (GPU); groups of other rows."""
    with lowering_for(platform):
        found = measured(call, selective_scan, implementation="xla")
    assert_close(found, truth(call), 1e-4)


@pytest.mark.slow
def test_whole_turns(monkeypatch):
    """Kills groups of a TPU kernel's turn in the wrong order."""
    monkeypatch.setattr(mosaic_tpu_layout, "BLOCK", 128)
    call = tpu(t=130, documents=True)
    assert_close(interpreted(call, "mosaic_tpu", interpret=True), truth(call), 1e-4)


def test_widths_of_a_step_and_objections():
    """Kills a TPU step that reads part of a tile of lanes; widths that do not divide the channels; a name that falls
    back."""
    widths = {1024: 1024, 1536: 768, 2048: 1024, 5120: 1024, 640: 640, 256: 256}
    assert {d: mosaic_tpu_layout._widths(d)[-1] for d in widths} == widths
    problem = {"b": 1, "t": 8, "d": 256, "n": 16}
    assert mosaic_tpu_layout.objection(Problem(**problem)) is None
    for changed, match in [({"d": 1408}, "1408 channels"), ({"n": 4}, "none of"), ({"dtype": jnp.float16}, "float16")]:
        assert match in (mosaic_tpu_layout.objection(Problem(**problem | changed)) or "")
    x, a, b = np.zeros((1, 3, 100), np.float32), np.zeros((100, 16), np.float32), np.zeros((1, 3, 16), np.float32)
    with pytest.raises(NotImplementedError, match="mosaic_tpu: 100 channels are no multiple of 256"):
        selective_scan(x, x, a, b, b, implementation="mosaic_tpu")
    with pytest.raises(NotImplementedError, match=r"mosaic_gpu: .*; use implementation='xla'"):
        selective_scan(x, x, a, b, b, implementation="mosaic_gpu")


def test_errors():
    x, a, b = np.zeros((1, 3, 4), np.float32), np.zeros((4, 2), np.float32), np.zeros((1, 3, 2), np.float32)
    for arrays, options, match in [
        ((x, x[:, :2], a, b, b), {}, r"\(1, 3, 4\), \(1, 2, 4\) must both be \(b, t, d\)"),
        ((x, x, a[:3], b, b), {}, r"a of shape \(3, 2\) must be \(d, n\), with d=4"),
        ((x, x, a, b, b[:, :2]), {}, r"must both be \(b, t, n\)=\(1, 3, 2\)"),
        ((x, x, a, b, b.astype(jnp.bfloat16)), {}, "must be equal; cast"),
        ((x, x.astype(np.float16), a, b, b), {}, "dtype of delta float16 must be float32 or that of x"),
        ((x, x, a, b, b), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((x, x, a, b, b), {"initial_state": jnp.zeros((1, 2, 4))}, "initial_state of shape"),
        ((x, x, a, b, b), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            selective_scan(*arrays, **options)
    empty = functools.partial(selective_scan, return_state=True)
    y, state = jax.eval_shape(empty, x[:, :0], x[:, :0], a, b[:, :0], b[:, :0])
    assert (y.shape, state.shape) == ((1, 0, 4), (1, 4, 2))


@pytest.mark.slow
@pytest.mark.parametrize("delta_dtype", ["float32", "bfloat16"])
def test_no_spills_with_documents_and_states(delta_dtype, capfd, monkeypatch):
    """Kills registers that only documents or a first state cost, neither of which a workload has."""
    absent_devices("h100", monkeypatch)
    call = gpu(t=200, d=64, b=2, documents=True, delta_dtype=delta_dtype)
    (x, delta, a, b, c, state), (dy, dstate) = typed(call)
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
