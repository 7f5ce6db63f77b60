"""Gated linear attention by XLA and by interpreted kernels, against float64: values, states and all gradients.

Kills: a carry between chunks or blocks, a mask or a decay of the wrong direction, token, head or warpgroup; a leak
across documents; a missing term of the gradient of decays; pairs of tokens of a level that are missing, counted twice
or weighted by the sums of another; a positive exponent, or sums that round a decay of 1 away next to one of e^-60.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.gated_linear_attention import gated_linear_attention, mosaic_tpu_layout, reference
from pallas_kernels.gated_linear_attention.problem import Problem
from tests.pallas_kernels.calls import gpu_interpreter, measured, truth
from tests.pallas_kernels.gated_linear_attention.cases import Call, interpreted
from tests.pallas_kernels.shared import assert_close, full, slow


def test_reference_by_hand():
    """Kills: a decay that acts after the token is written, one of the neighbour's channel, a state that is not read.

    k = 2, v = 1. S_0 = (8, 4); decays (1/2, 1/4), then (1, 1/2).
    S_1 = (4, 1) + (1, 2) 3 = (7, 7), y_1 = 7 - 7 = 0;  S_2 = (7, 3.5) + (2, 0) 1 = (9, 3.5), y_2 = 2 * 3.5 = 7.
    """
    q, k = (jnp.asarray(x, jnp.float32).reshape(1, 2, 1, 2) for x in ([[1, -1], [0, 2]], [[1, 2], [2, 0]]))
    v = jnp.asarray([3, 1], jnp.float32).reshape(1, 2, 1, 1)
    decay = jnp.log(jnp.asarray([[0.5, 0.25], [1, 0.5]], jnp.float32)).reshape(1, 2, 1, 2)
    s0 = jnp.asarray([8, 4], jnp.float32).reshape(1, 1, 2, 1)
    recurrence = jax.jit(reference.recurrence)
    y, s = recurrence(q, k, v, decay, initial_state=s0)
    np.testing.assert_allclose((*y.ravel(), *s.ravel()), [0, 7, 9, 3.5], rtol=1e-6, atol=1e-6)
    y, s = recurrence(q, k, v, decay, initial_state=s0, segment_ids=np.int32([[4, 5]]))
    np.testing.assert_allclose((*y.ravel(), *s.ravel()), [0, 0, 2, 0], atol=1e-6)


gpu = functools.partial(Call, b=1, h=1, g=1, k=64, v=64, dtype="bfloat16")
tpu = functools.partial(Call, b=1, k=64, v=64)


@pytest.mark.parametrize(
    ("implementation", "call", "chunk"),
    [
        ("xla", Call(t=150, h=4, documents=True), None),
        full("xla", Call(t=150, channel=True, documents=True), None),
        full("xla", Call(t=1, g=1, state=False), None),
        slow("xla", Call(t=131, decay=60.0), None),
        ("mosaic_gpu", gpu(t=150, documents=True), None),
        slow("mosaic_gpu", gpu(t=90, h=2, k=128, decay=0.1), None),
        slow("mosaic_gpu", gpu(t=200, v=128, state=False, decay=60.0), None),
        slow("mosaic_gpu", gpu(t=1100, decay=0.1), None),
        full("mosaic_gpu", gpu(t=70, channel=True, documents=True, decay=0.1), None),
        slow("mosaic_gpu", gpu(t=90, h=2, k=128, channel=True, state=False), None),
        slow("mosaic_gpu", gpu(t=200, v=128, channel=True, decay=60.0), None),
        slow("mosaic_gpu", gpu(t=100, k=128, v=128, channel=True), None),
        ("mosaic_tpu", tpu(t=70, documents=True), 16),
        slow("mosaic_tpu", tpu(t=600, k=128, decay=5.0), 128),
        slow("mosaic_tpu", tpu(t=90, b=2, h=12, g=1, documents=True), 32),
        slow("mosaic_tpu", tpu(t=90, h=12, g=6, v=128, state=False), 32),
        slow("mosaic_tpu", tpu(t=90, h=2, g=1, k=256, v=512), 32),
        full("mosaic_tpu", tpu(t=150, state=False, dtype="bfloat16"), 64),
        slow("mosaic_tpu", tpu(t=150, k=128, v=128, dtype="bfloat16", decay=60.0), 64),
        ("mosaic_tpu", tpu(t=270, channel=True, documents=True, decay=0.1), 32),
        slow("mosaic_tpu", tpu(t=200, k=128, v=128, channel=True, decay=60.0), 64),
        slow("mosaic_tpu", tpu(t=80, h=4, g=4, k=128, channel=True, state=False), 16),
        slow("mosaic_tpu", tpu(t=150, channel=True, dtype="bfloat16"), 64),
        slow("mosaic_tpu", tpu(t=300, k=256, v=512, channel=True, dtype="bfloat16", decay=60.0), 128),
    ],
    ids=str,
)
def test_values_and_gradients(implementation, call, chunk, monkeypatch):
    if implementation == "xla":
        found = measured(call, gated_linear_attention, implementation="xla")
    elif implementation == "mosaic_gpu":
        found = interpreted(call, implementation, interpret=gpu_interpreter())
    else:
        monkeypatch.setattr(mosaic_tpu_layout, "BLOCK", 2 * chunk)
        found = interpreted(call, implementation, chunk=chunk, interpret=True)
    expected, values, gradients = truth(call), *((1e-5, 1e-4) if call.dtype == "float32" else (1e-2, 1e-2))
    assert found[0][0].dtype == call.dtype
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


@pytest.mark.full
def test_many_chunks_at_once():
    """Kills a wrong form for accelerators."""
    call = Call(t=200, h=4, documents=True)
    with lowering_for("cuda"):
        found = measured(call, gated_linear_attention, implementation="xla")
    assert_close(found, truth(call), 1e-4)


def test_heads_of_a_step_and_objections():
    """Kills a TPU step that reads half a tile of lanes, or shares q and k with other heads than its own."""
    sizes = {(16, 16, 128, 128): (8, 1), (16, 16, 64, 64): (8, 2), (80, 1, 128, 64): (8, 2), (24, 1, 128, 64): (8, 2)}
    assert {x: mosaic_tpu_layout._heads(*x) for x in sizes} == sizes
    problem = {"b": 1, "t": 8, "h": 4, "k": 64, "v": 64}
    for changed, match in [
        ({"channel": True, "g": 2}, r"heads of q and k (2) as of v (4)"),
        ({"k": 96}, "multiples of 64"),
        ({"h": 3, "k": 128}, "do not fill tiles"),
        ({"dtype": jnp.float16}, "float16"),
    ]:
        assert match in (mosaic_tpu_layout.objection(Problem(**problem | changed)) or "")


def test_errors():
    q, v, g = (np.zeros((1, 3, *x), np.float32) for x in ((2, 4), (4, 5), (4,)))
    for arrays, options, match in [
        ((q, q[..., :3], v, g), {}, r"\(1, 3, 2, 3\), \(1, 3, 4, 5\) must be"),
        ((q, q, v[:, :, :3], g), {}, "3 heads of v must be a multiple of the 2"),
        ((q, q.astype(jnp.bfloat16), v, g), {}, "must be equal; cast"),
        ((q, q, v, g[:, :, :1]), {}, r"log_decay of shape \(1, 3, 1\) must be"),
        ((q, q, v, g), {"segment_ids": jnp.zeros((1, 2), jnp.int32)}, r"must be int32\[1, 3\]"),
        ((q, q, v, g), {"initial_state": jnp.zeros((1, 4, 5, 4))}, "initial_state of shape"),
        ((q, q, v, g), {"implementation": "fast"}, "must be one of"),
    ]:
        with pytest.raises(ValueError, match=match):
            gated_linear_attention(*arrays, **options)
    empty = functools.partial(gated_linear_attention, return_state=True)
    y, state = jax.eval_shape(empty, q[:, :0], q[:, :0], v[:, :0], g[:, :0])
    assert (y.shape, state.shape) == ((1, 0, 4, 5), (1, 4, 4, 5))
    arrays = (q + 1, q + 1, v + 1, g)
    once, twice = jax.jit(lambda *x: (gated_linear_attention(*x), gated_linear_attention(*x, scale=2.0)))(*arrays)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)
