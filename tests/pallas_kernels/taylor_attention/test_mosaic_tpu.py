"""The Mosaic TPU kernels, forward and backward, interpreted on CPU against the float64 quadratic form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.taylor_attention import mosaic_tpu, mosaic_tpu_vjp
from pallas_kernels.taylor_attention.mosaic_tpu_layout import head_group, make_geometry
from pallas_kernels.taylor_attention.state import TaylorState
from tests.pallas_kernels.shared import full, relative_l2, slow
from tests.pallas_kernels.taylor_attention.cases import Call, rounded, truth

# What a block reads beyond its array is then NaN, as it may be on the device.
NAN_MEMORY = pltpu.InterpretParams(uninitialized_memory="nan")
# float32: sums of up to 300 terms at 2^-24. bfloat16: five roundings of 2^-9 (phi or p, state, dy~, ds, the
# output itself) of random sign give 3e-3; measured 2e-3 to 4e-3, and a factor 2.5 of room.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}


def check(call, dtype=jnp.float32, *, chunk=64, backward_chunk=None, rates=None, interpret=True):
    """Values, denominators, states and gradients within `TOLERANCE` of the truth, two chunks a grid step; `rates`: a
    decay for each head."""
    arrays, cotangents = rounded(call, dtype, state_cotangent=1.0)
    rates = call.rates if rates is None else np.asarray(rates, np.float32)
    options = {
        "h": call.h, "scale": call.k**-0.5 if call.scale is None else call.scale, "normalize": call.normalize,
        "decay": None if rates is None else jnp.asarray(rates), "interpret": interpret,
    }  # fmt: skip
    backward_chunk = backward_chunk or chunk

    @jax.jit
    def values_and_gradients(tokens, state, dy, dstate):
        y, final, den = mosaic_tpu.forward(
            *tokens, initial_state=state, return_state=True, return_den=call.normalize, chunk_size=chunk,
            block_size=2 * chunk, **options,
        )  # fmt: skip
        gradients = mosaic_tpu_vjp.backward(
            *tokens, y, den, dy, initial_state=state, dstate=dstate, chunk_size=backward_chunk,
            block_size=2 * backward_chunk, **options,
        )  # fmt: skip
        return (y, *final), (gradients.q, gradients.k, gradients.v, *(gradients.initial_state or ()))

    *tokens, dy = (jnp.asarray(x, dtype).reshape(call.b, call.t, -1) for x in (*arrays[:3], cotangents[0]))
    state, dstate = (TaylorState(*map(jnp.float32, x)) for x in (arrays[3:] or cotangents[1:], cotangents[1:]))
    found = values_and_gradients(tokens, state if call.state else None, dy, dstate)
    assert (found[0][0].dtype, found[0][1].dtype) == (dtype, jnp.float32)
    expected = truth(call, arrays, cotangents, rates=rates)
    errors = [
        relative_l2(np.asarray(x).reshape(y.shape), y)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    ]
    assert max(errors) < TOLERANCE[jnp.dtype(dtype).name], errors


HEADS = functools.partial(Call, h=2, g=2, k=16, v=64, eps=1e-6)
CASES = {
    "one token": (HEADS(t=1), {"backward_chunk": 48}),
    "one chunk": (HEADS(t=64, b=2, h=3, g=3), {"backward_chunk": 48}),
    "last block of one token": (HEADS(t=129, b=2, h=3, g=3), {"backward_chunk": 48}),
    "three blocks": (HEADS(t=300, b=2, h=3, g=3), {"backward_chunk": 48}),
    "memory of NaN": (HEADS(t=100, decay=True), {"interpret": NAN_MEMORY}),
    "memory of NaN, one token": (HEADS(t=1), {"interpret": NAN_MEMORY}),
    "bfloat16": (HEADS(t=150, h=1, g=1, decay=True), {"dtype": jnp.bfloat16}),
    "bfloat16, 24 and 40 channels": (
        HEADS(t=40, h=3, g=3, k=24, v=40, decay=True),
        {"dtype": jnp.bfloat16, "chunk": 32},
    ),
    "bfloat16, 8 and 8 channels": (HEADS(t=40, h=5, g=5, k=8, v=8, decay=True), {"dtype": jnp.bfloat16, "chunk": 32}),
    "neither normalised nor a state": (HEADS(t=150, normalize=False, state=False), {}),
    "decay, not normalised": (HEADS(t=150, normalize=False, decay=True), {}),
    "no state": (HEADS(t=150, state=False), {}),
    "decay of zero and one": (HEADS(t=40, h=3, g=3, k=8, v=16), {"chunk": 32, "rates": [0.0, 1.0, 0.5]}),
    **{f"scale {x:g}": (HEADS(t=40, k=8, v=16, scale=x), {"chunk": 32}) for x in (-0.7, 0.0, 1e10, 1e-10)},
    "24 and 40 channels": (HEADS(t=40, h=3, g=3, k=24, v=40), {"chunk": 32}),
    "32 and 128 channels": (HEADS(t=40, h=3, g=3, k=32, v=128), {"chunk": 32}),
    "8 heads of 16 and 112 channels": (HEADS(t=40, h=8, g=8, k=16, v=112), {"chunk": 32}),
    "17 heads": (HEADS(t=40, h=17, g=17, k=8, v=32), {"chunk": 32}),
    "two groups of heads, decay": (HEADS(t=33, h=16, g=16, decay=True), {"chunk": 32}),
}
"""Call and options of `check`, by name."""
FULL = ("memory of NaN", "bfloat16", "scale 0")


@pytest.mark.parametrize("case", [full(name) if name in FULL else slow(name) for name in CASES])
def test_values_and_gradients(case):
    """Kills: a wrong carry, mask or tail, in either direction, a tail masked by multiplication, a carried state of
    bfloat16, log 0 times 0, 1 / scale of 0, lanes of a head cut at the wrong place, heads of padding, decay of the
    first group of heads used for the second."""
    call, options = CASES[case]
    check(call, **options)


@pytest.mark.full
def test_head_groups():
    assert [head_group(h, 16, 64) for h in (8, 16, 12, 3, 20)] == [8, 8, 12, 3, 8]
    assert [head_group(16, k, 64) for k in (8, 24, 32)] == [16, 16, 4]
    assert head_group(16, 32, 112) == 8


@pytest.mark.full
def test_blocks_share_out_the_chunks():
    """Kills: 5 chunks as blocks of 4, the second of which is 3 chunks of nothing; a block beyond the memory."""

    def block(t, *, v=64, dtype="bfloat16"):
        q, v = (jax.ShapeDtypeStruct((1, t, 8 * width), dtype) for width in (16, v))
        options = {"h": 8, "scale": 1.0, "eps": 0.0, "normalize": True, "chunk_size": 128, "block_size": 512}
        return make_geometry(q, v, **options).block

    assert [block(t) for t in (1, 128, 129, 512, 640, 8192)] == [128, 128, 256, 512, 384, 512]
    assert block(8192, v=128, dtype="float32") == 256


REFUSED = [
    (8, 40, "chunk_size=40"),
    (200, 64, "of 128 on a TPU"),
]


def test_refuses_chunks_that_do_not_fill_tiles():
    for t, chunk_size, match in REFUSED:
        q, v = np.zeros((1, t, 32), np.float32), np.zeros((1, t, 64), np.float32)
        with pytest.raises(ValueError, match=match):
            mosaic_tpu.forward(q, q, v, h=2, scale=1.0, chunk_size=chunk_size)
