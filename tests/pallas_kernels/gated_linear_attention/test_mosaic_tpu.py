"""The TPU kernels, interpreted, against float64: values, states and all gradients."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.gated_linear_attention import api, mosaic_tpu_layout, xla
from pallas_kernels.gated_linear_attention.problem import Problem
from pallas_kernels.op import Options
from tests.pallas_kernels.gated_linear_attention.cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow

TOLERANCE = {"float32": (1e-5, 1e-4), "bfloat16": (1e-2, 1e-2)}


def measured(call: Call, *, chunk: int):
    """(y, last state), and the gradients of all arrays."""
    (q, k, v, log_decay, *state), (dy, dstate) = arrays_of(call)
    decays = log_decay if call.channel else log_decay[..., None]
    log_decay = jax.jit(xla.with_resets)(decays, call.segment_ids).reshape(log_decay.shape)
    operands, how = (q, k, v, log_decay, state[0] if state else None), {"chunk": chunk, "interpret": True}
    kernels, options = api.BACKENDS["mosaic_tpu"], Options(return_state=True, save_states=True)
    y, last, borders = kernels.forward(*operands, options, **how)
    gradients = kernels.backward(*operands, borders, dy, dstate, options, **how)
    return (y, last), gradients[: len(operands) - (not state)]


@pytest.mark.parametrize(
    ("call", "chunk"),
    [
        (Call(t=70, b=1, k=64, v=64, documents=True), 16),
        slow(Call(t=600, b=1, k=128, v=64, decay=5.0), 128),
        slow(Call(t=90, b=2, h=12, g=1, k=64, v=64, documents=True), 32),
        slow(Call(t=90, b=1, h=12, g=6, k=64, v=128, state=False), 32),
        slow(Call(t=90, b=1, h=2, g=1, k=256, v=512), 32),
        full(Call(t=150, b=1, k=64, v=64, state=False, dtype="bfloat16"), 64),
        slow(Call(t=150, b=1, k=128, v=128, dtype="bfloat16", decay=60.0), 64),
        (Call(t=270, b=1, k=64, v=64, channel=True, documents=True, decay=0.1), 32),
        slow(Call(t=200, b=1, k=128, v=128, channel=True, decay=60.0), 64),
        slow(Call(t=80, b=1, h=4, g=4, k=128, v=64, channel=True, state=False), 16),
        slow(Call(t=150, b=1, k=64, v=64, channel=True, dtype="bfloat16"), 64),
        slow(Call(t=300, b=1, k=256, v=512, channel=True, dtype="bfloat16", decay=60.0), 128),
    ],
    ids=str,
)
def test_values_and_gradients(call, chunk, monkeypatch):
    """Kills: a wrong carry between chunks or blocks, in either direction; heads of a pack that mix; the decay of a
    neighbour; a term of the gradient of the decay; gradients of shared heads that are not summed. Per channel also: a
    pair of tokens that no level has, or two; a positive exponent; sums that round a decay of 1 away next to one of
    e^-60."""
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
        ({"channel": True, "g": 2}, r"heads of q and k (2) as of v (4)"),
        ({"k": 96}, "multiples of 64"),
        ({"h": 3, "k": 128}, "do not fill tiles"),
        ({"dtype": jnp.float16}, "float16"),
    ]:
        assert match in (mosaic_tpu_layout.objection(Problem(**problem | changed)) or "")
