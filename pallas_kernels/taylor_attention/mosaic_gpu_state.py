"""Inside the Hopper kernels: the warpgroup that scans the state. Layouts: `mosaic_gpu_layout`."""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, WGMMA, Mma, columns_to, iota, rows_to
from pallas_kernels.taylor_attention.mosaic_gpu_block import STAGES, Block, Ring, wait_last
from pallas_kernels.taylor_attention.mosaic_gpu_layout import GROUPS, KEY_DIM
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import feature_factors, tile, zeros

STATE_BUFFERS = 2  # bf16 copies of the state that the two warpgroups pass to each other


@dataclasses.dataclass(frozen=True)
class Scanned:
    """What a state scan sums, by the names of its streams."""

    x: str  # (64, 16) keys, or queries in the reverse scan
    u: str  # (64, 64) values, or dnum in the reverse scan
    first: str = "first"  # the A matrices; "first_q" with the query weights
    weight: str | None = None  # (64,) row weights of z only (dden in the reverse scan); None: 1


def scan_states(mma: Mma, refs, scanned: Scanned, ring: Ring, block: Block, state, *, published: bool):
    """Scans the chunks of one segment: publishes the state before each chunk, then adds the chunk to it.

    S^T <- g^L S^T + u^T diag(d) phi(x),  Z <- g^L Z + [x, 1]^T diag(d w) x, over the L rows of the chunk,
    with row decays d and weights w. refs: the namespace of `launch`, with the scratch of `state_scratch`;
    state: (s_0, s_1, s_2, z) float32. Returns the last state.
    """
    slots = [None if n is None else getattr(refs, f"{n}_s") for n in (scanned.x, scanned.u, scanned.weight)]
    first = getattr(refs, f"{scanned.first}_s")

    def chunk(position, state):
        slot = lax.rem(position, jnp.int32(STAGES))
        ring.refill(position)
        if published:
            _publish(refs, position, state)
        else:
            # Every warp must be done with the phi and x^T of the last chunk; publishing has this barrier in it.
            plgpu.commit_smem()
        plgpu.barrier_wait(ring.full.at[slot])
        x, u, weight = (None if ref is None else ref.at[slot] for ref in slots)
        decays = None
        if block.decay is not None:
            whole, decays = block.scan_factors(position)
            state = tuple(part * whole for part in state)
        for g in range(GROUPS):
            a, b = feature_factors(mma, g, x, first, refs.second_s)
            phi = a * b
            if decays is not None:
                phi = phi * rows_to(decays(PER_ROW))
            refs.phi[g] = phi.astype(jnp.bfloat16)
        refs.x_t.at[0:KEY_DIM].T[...] = plgpu.load(x, layout=WGMMA)
        plgpu.commit_smem()
        x_t = _weighted(plgpu.load(refs.x_t, layout=WGMMA), weight, decays)

        def accumulate(*accs):
            for g in range(GROUPS):
                plgpu.wgmma(accs[g], u.transpose((1, 0)), refs.phi.at[g])
            mma.registers(accs[GROUPS], x_t, x)

        return mma.update(state, accumulate)

    # Row 16 of x^T is the constant 1 that sums x; chunks overwrite rows 0..15 only.
    refs.x_t[...] = jnp.where(iota((64, 64), 0) == KEY_DIM, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()
    state = lax.fori_loop(0, ring.count, chunk, state)
    ring.drain()
    if published:
        wait_last(refs.s_empty, ring.count, STATE_BUFFERS)
    return state


def _publish(refs, position, state):
    """Rounds the state into the buffer of this position, once the other warpgroup has left it."""
    buffer = lax.rem(position, jnp.int32(STATE_BUFFERS))

    @pl.when(position >= STATE_BUFFERS)
    def _():
        plgpu.barrier_wait(refs.s_empty.at[buffer])

    for g in range(GROUPS):
        refs.state_s[buffer * GROUPS + g] = state[g].astype(jnp.bfloat16)
    refs.state_z[buffer] = state[GROUPS].astype(jnp.bfloat16)
    plgpu.commit_smem()
    plgpu.barrier_arrive(refs.s_full.at[buffer])


def _weighted(x_t, weight, decays):
    """[x, 1]^T diag(d w): rows 0..15 of x_t are x^T, row 16 is 1, the rest are 0."""
    if weight is None and decays is None:
        return x_t
    w = None if weight is None else plgpu.load(weight, layout=PER_COLUMN)
    if decays is not None:
        w = decays(PER_COLUMN) if w is None else w * decays(PER_COLUMN)
    row, w = iota((64, 64), 0), columns_to(w)
    x_t = x_t.astype(jnp.float32)
    return jnp.where(row < KEY_DIM, x_t * w, jnp.where(row == KEY_DIM, w, 0.0)).astype(jnp.bfloat16)


def load_state(s_ref, z_ref, index):
    """Reads a kernel state from global memory, or makes a zero one where s_ref is None."""
    if s_ref is None:
        return (*[zeros()] * GROUPS, zeros(KEY_DIM))
    refs = (*[s_ref.at[*index, g] for g in range(GROUPS)], z_ref.at[*index])
    return tuple(plgpu.load(ref, layout=WGMMA, optimized=False) for ref in refs)


def store_state(s_ref, z_ref, index, state):
    for g in range(GROUPS):
        s_ref[*index, g] = state[g]
    z_ref[*index] = state[GROUPS]


def state_scratch(published):
    """Shared memory of a state scan besides its operands, and of the states that it publishes."""
    scratch = {"phi": tile(GROUPS, 64), "x_t": tile(None, 64)}
    if published:
        scratch |= {
            "state_s": tile(STATE_BUFFERS * GROUPS, 64),
            "state_z": tile(STATE_BUFFERS, KEY_DIM),
            "ones_s": tile(None, KEY_DIM),
            "s_full": plgpu.Barrier(num_arrivals=1, num_barriers=STATE_BUFFERS),
            "s_empty": plgpu.Barrier(num_arrivals=1, num_barriers=STATE_BUFFERS),
            "empty": plgpu.Barrier(num_arrivals=1, num_barriers=STAGES),
        }
    return scratch
