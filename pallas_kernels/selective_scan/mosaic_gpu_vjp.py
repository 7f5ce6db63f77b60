"""Selective scan on Hopper, backward: chunks of 16 tokens in reverse, states of a chunk in registers.

With e_t the decay of a token, h_t the states and g_t their cotangents, sums over the tokens t, channels d, numbers n:

    g_t = c_t dy_t + e_{t+1} g_{t+1}        dc_t = sum_d dy_t h_t                db_t = sum_d x_t (delta_t g_t)
    w_t = e_t g_t h_{t-1}                   dx_t = delta_t sum_n b_t g_t         da = sum_t delta_t w_t
                                            ddelta_t = sum_n a w_t + x_t sum_n b_t g_t

A block recomputes the decays and states of a chunk from a saved state, and keeps both in registers. Sums over channels
are matrix products: in bfloat16, h and delta g of four tokens are an operand of 64 rows (token, n) by 32 channels, dy
or x of eight tokens the other; one column per token of the (64, 8) products is used. XLA adds these partial sums over
blocks, and da over rows.

Pallas' own barriers are off. Barriers are `commit_smem` before the products, `commit_smem` after them, when a slot of
the ring and the operands are free again, and the wait for the copies of earlier gradients.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.ring import Ring, pad_tokens
from pallas_kernels.hopper.tiles import NARROW, iota, launch
from pallas_kernels.selective_scan.mosaic_gpu_layout import (
    CHANNELS,
    CHUNK,
    LOG2_E,
    SAVED,
    STATES,
    Inputs,
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
ARRAYS = "x", "delta", "maps", "dy"
OPERANDS = "x_tile", "dy_tile"
"""Copies of x and dy in the layout of wgmma."""
ROWS = 64
"""Rows of a product: the states of `TOGETHER` tokens."""
TOGETHER = ROWS // STATES
PIECE = 8
"""Tokens whose inputs are in registers at once; they are loaded before any store, which would delay later loads."""
COLUMNS = 8
"""Tokens of the other operand."""


def backward(x, delta, a, b, c, keep, state, saved, dy, dstate, options, *, interpret=None):
    """Gradients of x, delta, a, b, c and state (or None); saved: the states of `forward`."""
    given = inputs(x, delta, a, b, c, keep)
    given.arrays["dy"] = pad_tokens(dy, CHUNK)
    found = _gradients(given, saved, dstate, interpret=interpret)
    t, n = x.shape[1], a.shape[1]

    def by_token(partial):
        """Sums over blocks, (b, t, n)."""
        total = partial.astype(jnp.float32).sum(0).reshape(x.shape[0], -1, STATES)
        return total[:, :t, :n].astype(b.dtype)

    dstart = None if state is None else found["dstart"][..., :n]
    da, db, dc = found["da"][..., :n].sum(0), by_token(found["db"]), by_token(found["dc"])
    return found["dx"][:, :t], found["ddelta"][:, :t], da, db, dc, dstart


def _gradients(given: Inputs, saved, dstate, *, interpret) -> dict[str, jax.Array]:
    """dx, ddelta (b, t', d), da and dstart (b, d, 16), partial db and dc (blocks, b, t' / 4, 64)."""
    chunks, (rows, _, d) = given.tokens // SAVED, given.x.shape

    def body(r):
        batch, block = lax.axis_index("b"), lax.axis_index("block")
        channels, loads = channels_of(block), token_loads(r, (*ARRAYS, *OPERANDS), SAVED)

        def state_at(row):
            return (batch, lax.div(row, jnp.int32(SAVED)), channels)

        loads.append((r.states, state_at, lambda slot: r.states_s.at[slot]))

        def first_token(position):
            return (chunks - 1 - position) * SAVED

        ring = Ring(tuple(loads), first_token, jnp.int32(chunks), STAGES, r.full, None, lag=0)
        ring.start()
        rate = load_state(r.rates.at[channels])

        def chunk(position, carry):
            slot = lax.rem(position, jnp.int32(STAGES))
            plgpu.barrier_wait(r.full.at[slot])
            carry = _chunk(r, Tokens(r, slot, given.documents), rate, *carry)
            plgpu.commit_smem()
            _channel_sums(r, slot)
            plgpu.commit_smem()
            ring.refill(position)
            tokens, groups = (pl.ds(first_token(position) // n, SAVED // n) for n in (1, TOGETHER))
            for name in ("dx", "ddelta"):
                plgpu.copy_smem_to_gmem(getattr(r, f"{name}_s"), getattr(r, name).at[batch, tokens, channels])
            for name in ("db", "dc"):
                plgpu.copy_smem_to_gmem(getattr(r, f"{name}_s"), getattr(r, name).at[block, batch, groups])
            return carry

        last = zero_state() if dstate is None else load_state(r.dlast.at[batch, channels])
        dstart, da = lax.fori_loop(0, chunks, chunk, (last, zero_state()))
        plgpu.wait_smem_to_gmem(0)
        r.dstart[batch, channels], r.da[batch, channels] = dstart, da

    whole = jax.ShapeDtypeStruct((rows, d, STATES), jnp.float32)
    partial = jax.ShapeDtypeStruct((d // CHANNELS, rows, given.tokens // TOGETHER, ROWS), jnp.bfloat16)
    x, delta = (jax.ShapeDtypeStruct(z.shape, z.dtype) for z in (given.x, given.delta))
    arrays = given.arrays | {"x_tile": given.x, "dy_tile": given.arrays["dy"], "states": saved}
    arrays["dlast"] = None if dstate is None else pad_states(dstate.astype(jnp.float32))
    return launch(
        "selective_scan_backward", body, arrays,
        {"dx": x, "ddelta": delta, "db": partial, "dc": partial, "da": whole, "dstart": whole}, _scratch(given),
        grid=given.grid, approx_math=True, interpret=interpret,
    )  # fmt: skip


def _scratch(given: Inputs):
    def tile(*shape):
        return plgpu.SMEM(shape, jnp.bfloat16, transforms=NARROW)

    scratch = token_scratch(given, ARRAYS, STAGES, SAVED)
    scratch |= {f"{name}_s": tile(STAGES, SAVED, CHANNELS) for name in OPERANDS}
    scratch["states_s"] = plgpu.SMEM((STAGES, CHANNELS, STATES), jnp.bfloat16)
    scratch["full"] = plgpu.Barrier(num_arrivals=len(scratch), num_barriers=STAGES)
    groups = SAVED // TOGETHER
    scratch |= {f"{name}_s": tile(groups, CHANNELS, ROWS) for name in ("h", "g")}
    scratch |= {f"{name}_s": plgpu.SMEM((groups, ROWS), jnp.bfloat16) for name in ("db", "dc")}
    scratch["dx_s"] = plgpu.SMEM((SAVED, CHANNELS), given.x.dtype)
    scratch["ddelta_s"] = plgpu.SMEM((SAVED, CHANNELS), given.delta.dtype)
    return scratch


def _chunk(r, tokens: Tokens, rate, carry, da):
    """e_t g_t of the first token of a chunk, from the next chunk's, and da; writes the operands of `_channel_sums`, dx
    and ddelta."""
    h, decays = [load_state(r.states_s.at[tokens.slot])], []
    for some in _pieces():
        deltas, xs, bs = tokens.channels("delta", some), tokens.channels("x", some), tokens.b(some)
        for i, delta, x, b in zip(some, deltas, xs, bs, strict=True):
            decays.append(tokens.decay(delta, rate, i))
            h.append(decays[i] * h[i] + by_channel(delta * x) * by_state(b))
        for i in some:
            _write_operand(r.h_s, i, h[i + 1])
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    for some in reversed(_pieces()):
        deltas, xs, douts = (tokens.channels(name, some) for name in ("delta", "x", "dy"))
        found, columns = [], zip(some, deltas, xs, douts, tokens.b(some), tokens.c(some), strict=True)
        for i, delta, x, dy, b, c in reversed(list(columns)):
            g = carry + by_channel(dy) * by_state(c)
            carry = g * decays[i]
            w, step = carry * h[i], by_channel(delta)
            da = da + w * step
            by_x = jnp.sum(g * by_state(b), axis=1)
            found.append((i, g * step, by_x * delta, jnp.sum(w * rate, axis=1) / LOG2_E + by_x * x))
        for i, g, dx, ddelta in found:
            _write_operand(r.g_s, i, g)
            r.dx_s[i], r.ddelta_s[i] = dx.astype(r.dx_s.dtype), ddelta.astype(r.ddelta_s.dtype)
    return carry, da


def _pieces() -> list[range]:
    """The tokens of a chunk, `PIECE` at once."""
    return [range(first, first + PIECE) for first in range(0, SAVED, PIECE)]


def _write_operand(ref, i, x):
    """Columns of token i of a chunk, of (groups, channels, (token, n))."""
    ref[i // TOGETHER, :, pl.ds(i % TOGETHER * STATES, STATES)] = x.astype(jnp.bfloat16)


def _channel_sums(r, slot):
    """db and dc of a chunk, into shared memory."""
    groups = range(SAVED // TOGETHER)
    sums = [(r.dc_s, r.h_s, r.dy_tile_s), (r.db_s, r.g_s, r.x_tile_s)]
    pairs = [(out.at[i], left.at[i], right.at[slot], i) for out, left, right in sums for i in groups]

    def products(*accs):
        for acc, (_, left, right, i) in zip(accs, pairs, strict=True):
            tokens = right.at[pl.ds(i * TOGETHER // COLUMNS * COLUMNS, COLUMNS)]
            plgpu.wgmma(acc, left.transpose((1, 0)), tokens.transpose((1, 0)))
        plgpu.wgmma_wait(0)
        return [acc[...] for acc in accs]

    found = pl.run_scoped(products, *[plgpu.ACC((ROWS, COLUMNS), jnp.float32)] * len(pairs))
    row, column = (iota((ROWS, COLUMNS), axis) for axis in range(2))
    for product, (out, _, _, i) in zip(found, pairs, strict=True):
        own = column == lax.div(row, jnp.int32(STATES)) + i * TOGETHER % COLUMNS
        out[...] = jnp.sum(jnp.where(own, product, 0.0), axis=1).astype(out.dtype)
