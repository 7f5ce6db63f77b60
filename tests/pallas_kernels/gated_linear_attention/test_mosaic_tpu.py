"""The TPU kernels, interpreted, against float64: values, states and all gradients."""

import jax.numpy as jnp
import pytest

from pallas_kernels.gated_linear_attention import mosaic_tpu, mosaic_tpu_layout, xla
from pallas_kernels.gated_linear_attention.problem import Problem
from tests.pallas_kernels.gated_linear_attention.cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow

TOLERANCE = {"float32": (1e-5, 1e-4), "bfloat16": (1e-2, 1e-2)}


def measured(call: Call, *, chunk: int):
    """(y, last state), and the gradients of all arrays."""
    (q, k, v, log_decay, *state), (dy, dstate) = arrays_of(call)
    log_decay = xla.with_resets(log_decay[..., None], call.segment_ids)[..., 0]
    operands, how = (q, k, v, log_decay, state[0] if state else None), {"chunk": chunk, "interpret": True}
    y, last, borders = mosaic_tpu.forward(*operands, return_state=True, save_states=True, **how)
    gradients = mosaic_tpu.backward(*operands, borders, dy, dstate, **how)
    return (y, last), gradients[: len(operands) - (not state)]


@pytest.mark.parametrize(
    ("call", "chunk"),
    [
        (Call(t=70, b=1, k=64, v=64, documents=True), 16),
        full(Call(t=600, b=1, k=128, v=64, decay=5.0), 128),
        full(Call(t=90, b=2, h=12, g=1, k=64, v=64, documents=True), 32),
        full(Call(t=90, b=1, h=12, g=6, k=64, v=128, state=False), 32),
        slow(Call(t=90, b=1, h=2, g=1, k=256, v=512), 32),
        full(Call(t=150, b=1, k=64, v=64, dtype="bfloat16"), 64),
        slow(Call(t=150, b=1, k=128, v=128, dtype="bfloat16", decay=60.0), 64),
    ],
    ids=str,
)
def test_values_and_gradients(call, chunk, monkeypatch):
    """Kills: a wrong carry between chunks or blocks, in either direction; heads of a pack that mix; the decay of a
    neighbour; a term of the gradient of the decay; gradients of shared heads that are not summed."""
    monkeypatch.setattr(mosaic_tpu_layout, "BLOCK", 2 * chunk)
    expected, found = truth(call), measured(call, chunk=chunk)
    values, gradients = TOLERANCE[call.dtype]
    assert_close(found[0], expected[0], values)
    assert_close(found[1], expected[1], gradients)


def test_heads_of_a_step_and_what_is_refused():
    """Kills: a step that reads half a tile of lanes, or shares q and k with other heads than its own."""
    sizes = {(16, 16, 128, 128): (8, 1), (16, 16, 64, 64): (8, 2), (80, 1, 128, 64): (8, 2), (24, 1, 128, 64): (8, 2)}
    assert {x: mosaic_tpu_layout._heads(*x) for x in sizes} == sizes
    problem = {"b": 1, "t": 8, "h": 4, "k": 64, "v": 64}
    for changed, match in [
        ({"channel": True}, "per channel"),
        ({"k": 96}, "multiples of 64"),
        ({"h": 3, "k": 128}, "do not fill tiles"),
        ({"dtype": jnp.float16}, "float16"),
    ]:
        assert match in (mosaic_tpu_layout.objection(Problem(**problem | changed)) or "")
