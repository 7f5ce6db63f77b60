"""Selective scan on Hopper, forward: a thread block scans 32 channels of a row, its states in registers.

    h_t = keep_t exp(delta_t a) h_{t-1} + delta_t x_t b_t         y_t = sum_n c_t[n] h_t[n]

TMA loads chunks of tokens into a ring in shared memory. `SAVED` tokens are unrolled; their outputs are stored after the
last one, because a store delays later loads.

Pallas' own barriers are off. `commit_smem` after the outputs of a chunk is a barrier, after which its slot of the ring
is reloaded; the wait for the copy of earlier outputs is another one.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.ring import Ring
from pallas_kernels.hopper.tiles import launch
from pallas_kernels.selective_scan.mosaic_gpu_layout import (
    CHANNELS,
    CHUNK,
    SAVED,
    STATES,
    Tokens,
    by_channel,
    by_state,
    channels_of,
    inputs,
    load_state,
    pad_states,
    token_loads,
    token_scratch,
    zero_state,
)

STAGES = 2
ARRAYS = "x", "delta", "maps"


def forward(x, delta, a, b, c, keep, state, options, *, interpret=None):
    """y, the last state or None, and the states for `backward` or None (contract in `api.py`).

    The saved states precede every `SAVED` tokens, (b, t' / SAVED, d, 16) bfloat16.
    """
    given = inputs(x, delta, a, b, c, keep)
    chunks, scratch = given.tokens // CHUNK, token_scratch(given, ARRAYS, STAGES, CHUNK)

    def body(r):
        batch, block = lax.axis_index("b"), lax.axis_index("block")
        channels, loads = channels_of(block), tuple(token_loads(r, ARRAYS, CHUNK))
        ring = Ring(loads, lambda position: position * CHUNK, jnp.int32(chunks), STAGES, r.full, None, lag=0)
        ring.start()
        rate = load_state(r.rates.at[channels])

        def chunk(position, h):
            slot, buffer = (lax.rem(position, jnp.int32(n)) for n in (STAGES, 2))
            plgpu.barrier_wait(r.full.at[slot])
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)
            for piece in range(CHUNK // SAVED):
                if options.save_states:
                    r.states[batch, position * (CHUNK // SAVED) + piece, channels] = h.astype(jnp.bfloat16)
                tokens = range(piece * SAVED, (piece + 1) * SAVED)
                h, outputs = _tokens(Tokens(r, slot, given.documents), tokens, rate, h)
                for i, y in zip(tokens, outputs, strict=True):
                    r.y_s[buffer, i] = y.astype(x.dtype)
            plgpu.commit_smem()
            ring.refill(position)
            plgpu.copy_smem_to_gmem(r.y_s.at[buffer], r.y.at[batch, pl.ds(position * CHUNK, CHUNK), channels])
            return h

        h = lax.fori_loop(0, chunks, chunk, zero_state() if state is None else load_state(r.start.at[batch, channels]))
        plgpu.wait_smem_to_gmem(0)
        if options.return_state:
            r.last[batch, channels] = h

    rows, _, d = x.shape
    outputs = {"y": jax.ShapeDtypeStruct(given.x.shape, x.dtype)}
    if options.save_states:
        outputs["states"] = jax.ShapeDtypeStruct((rows, given.tokens // SAVED, d, STATES), jnp.bfloat16)
    if options.return_state:
        outputs["last"] = jax.ShapeDtypeStruct((rows, d, STATES), jnp.float32)
    scratch["full"] = plgpu.Barrier(num_arrivals=len(scratch), num_barriers=STAGES)
    scratch["y_s"] = plgpu.SMEM((2, CHUNK, CHANNELS), x.dtype)
    start = None if state is None else pad_states(state.astype(jnp.float32))
    found = launch(
        "selective_scan_forward", body, given.arrays | {"start": start}, outputs, scratch,
        grid=given.grid, approx_math=True, interpret=interpret,
    )  # fmt: skip
    last = found["last"][:, :, : a.shape[1]] if options.return_state else None
    return found["y"][:, : x.shape[1]], last, found.get("states")


def _tokens(given: Tokens, tokens: range, rate, h):
    """The state after the tokens, and their outputs (32,) float32."""
    outputs = []
    deltas, xs = given.channels("delta", tokens), given.channels("x", tokens)
    for i, delta, x, b, c in zip(tokens, deltas, xs, given.b(tokens), given.c(tokens), strict=True):
        h = given.decay(delta, rate, i) * h + by_channel(delta * x) * by_state(b)
        outputs.append(jnp.sum(h * by_state(c), axis=1))
    return h, outputs
