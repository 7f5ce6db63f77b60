"""The Hopper kernels, interpreted with races detected, against float64: values, states and all gradients."""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.gated_linear_attention import api, xla
from pallas_kernels.op import Options
from tests.pallas_kernels.gated_linear_attention.cases import Call, arrays_of, truth
from tests.pallas_kernels.shared import assert_close, full, slow


def measured(call: Call):
    """(y, last state), and the gradients of all arrays."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    (q, k, v, log_decay, *state), (dy, dstate) = arrays_of(call)
    decays = log_decay if call.channel else log_decay[..., None]
    log_decay = jax.jit(xla.with_resets)(decays, call.segment_ids).reshape(log_decay.shape)
    operands = q, k, v, log_decay, state[0] if state else None
    interpret = plgpu.InterpretGPUParams(detect_races=True)
    kernels, options = api.BACKENDS["mosaic_gpu"], Options(return_state=True, save_states=True)
    y, last, saved = kernels.forward(*operands, options, interpret=interpret)
    like = kernels.saved_like(*operands)
    assert (saved.shape, saved.dtype) == (like.shape, like.dtype)
    gradients = kernels.backward(*operands, saved, dy, dstate, options, interpret=interpret)
    return (y, last), gradients[: len(operands) - (not state)]


@pytest.mark.parametrize(
    "call",
    [
        Call(t=150, b=1, h=1, g=1, k=64, v=64, documents=True, dtype="bfloat16"),
        slow(Call(t=90, b=1, h=2, g=1, k=128, v=64, decay=0.1, dtype="bfloat16")),
        slow(Call(t=200, b=1, h=1, g=1, k=64, v=128, state=False, decay=60.0, dtype="bfloat16")),
        slow(Call(t=1100, b=1, h=1, g=1, k=64, v=64, decay=0.1, dtype="bfloat16")),
        full(Call(t=70, b=1, h=1, g=1, k=64, v=64, channel=True, documents=True, decay=0.1, dtype="bfloat16")),
        slow(Call(t=90, b=1, h=2, g=1, k=128, v=64, channel=True, state=False, dtype="bfloat16")),
        slow(Call(t=200, b=1, h=1, g=1, k=64, v=128, channel=True, decay=60.0, dtype="bfloat16")),
        slow(Call(t=100, b=1, h=1, g=1, k=128, v=128, channel=True, dtype="bfloat16")),
    ],
    ids=str,
)
def test_values_and_gradients(call):
    """Kills: a mask or a factor of the other direction; a state that is not decayed; columns of the wrong warpgroup;
    pairs across the middle of 128 tokens; a gradient of decays without <S, dS>; states that are not saved in the
    shape that other implementations fill with zeros. Per channel also: pairs of a level that are missing,
    counted twice, or weighted by the sums of another; parts of wide values that share no keys or decays."""
    found, expected = measured(call), truth(call)
    assert found[0][0].dtype == jnp.bfloat16
    assert_close(found[0], expected[0], 1e-2)
    assert_close(found[1], expected[1], 1e-2)
