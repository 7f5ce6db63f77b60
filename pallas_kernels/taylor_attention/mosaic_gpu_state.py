"""Inside the Hopper kernels: the warpgroup that scans the state. Layouts: `mosaic_gpu_layout`."""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, WGMMA, Mma, columns_to, iota
from pallas_kernels.taylor_attention.mosaic_gpu_block import STAGES, Block, Ring, wait_last
from pallas_kernels.taylor_attention.mosaic_gpu_features import COLUMNS
from pallas_kernels.taylor_attention.mosaic_gpu_layout import KEY_DIM
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import features, tile, zeros

BUFFERS = 2  # of states that the two warpgroups pass to each other, and of features


@dataclasses.dataclass(frozen=True)
class Scanned:
    """What a state scan sums, by the names of its streams."""

    x: str  # (64, 16) keys, or queries in the reverse scan
    u: str  # (64, 64) values, or dy in the reverse scan
    query_scale: float | None = None  # x are queries: features of query_scale * x, with the query weights
    u_weight: str | None = None  # (64,) row weights of u (1 / den in the reverse scan); None: 1
    z_weight: str | None = None  # ... of z (dden in the reverse scan)


def scan_states(mma: Mma, refs, scanned: Scanned, ring: Ring, block: Block, state, *, published: bool):
    """Scans the chunks of one segment: publishes the state before each chunk, then adds the chunk to it.

    S^T <- g^L S^T + (diag(d w) u)^T phi(x),  Z <- g^L Z + [x, 1]^T diag(d w') x, over the L rows of the chunk, with row
    decays d and weights w, w'. The features of the next chunk form while the products of this one are in flight.
    refs: the namespace of `launch`, with the scratch of `state_scratch`; state: (s, z) float32. Returns the last state.
    """

    def stream(name, slot):
        return None if name is None else getattr(refs, f"{name}_s").at[slot]

    def prepare(position):
        """Writes phi(x) and x^T of a chunk."""
        slot, buffer = lax.rem(position, jnp.int32(STAGES)), lax.rem(position, jnp.int32(BUFFERS))
        plgpu.barrier_wait(ring.full.at[slot])
        x = plgpu.load(stream(scanned.x, slot), layout=WGMMA)
        refs.x_t.at[buffer, 0:KEY_DIM].T[...] = x
        if scanned.query_scale is not None:
            x = x * jnp.asarray(scanned.query_scale, x.dtype)
        refs.phi[buffer] = features(mma, x, halved=scanned.query_scale is not None)

    def chunk(position, state):
        slot, buffer = lax.rem(position, jnp.int32(STAGES)), lax.rem(position, jnp.int32(BUFFERS))
        ring.await_free(position)
        if published:
            _publish(refs, position, state)
        else:
            # Features and x^T are there, and every warp has left those before; publishing has this barrier in it.
            plgpu.commit_smem()
        ring.refill(position)
        decays = None
        if block.decay is not None:
            whole, decays = block.scan_factors(position)
            state = tuple(part * whole for part in state)
        u_weights = _column_weights(stream(scanned.u_weight, slot), decays)
        z_weights = _column_weights(stream(scanned.z_weight, slot), decays)
        u_t = plgpu.load(stream(scanned.u, slot).T, layout=WGMMA)
        if u_weights is not None:
            u_t = (u_t.astype(jnp.float32) * u_weights).astype(jnp.bfloat16)
        x_t = _weighted(plgpu.load(refs.x_t.at[buffer], layout=WGMMA), z_weights)

        def accumulate(s, z):
            mma.registers(s, u_t, refs.phi.at[buffer])
            mma.registers(z, x_t, stream(scanned.x, slot))

            @pl.when(position + 1 < ring.count)
            def _():
                prepare(position + 1)

        return mma.update(state, accumulate)

    # Row 16 of x^T is the constant 1 that sums x; chunks overwrite rows 0..15 only.
    for i in range(BUFFERS):
        refs.x_t[i] = jnp.where(iota((64, 64), 0) == KEY_DIM, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()

    @pl.when(ring.count > 0)
    def _():
        prepare(jnp.int32(0))

    state = lax.fori_loop(0, ring.count, chunk, state)
    ring.drain()
    if published:
        wait_last(refs.s_empty, ring.count, BUFFERS)
    return state


def _publish(refs, position, state):
    """Rounds the state into the buffer of this position, once the other warpgroup has left it."""
    buffer = lax.rem(position, jnp.int32(BUFFERS))

    @pl.when(position >= BUFFERS)
    def _():
        plgpu.barrier_wait(refs.s_empty.at[buffer])

    refs.state_s[buffer], refs.state_z[buffer] = (x.astype(jnp.bfloat16) for x in state)
    plgpu.commit_smem()
    plgpu.barrier_arrive(refs.s_full.at[buffer])


def _column_weights(weights, decays):
    """Their product as (64, 64) values, by column; None for 1."""
    w = None if weights is None else plgpu.load(weights, layout=PER_COLUMN)
    if decays is not None:
        w = decays(PER_COLUMN) if w is None else w * decays(PER_COLUMN)
    return None if w is None else columns_to(w)


def _weighted(x_t, weights):
    """[x, 1]^T diag(weights): rows 0..15 of x_t are x^T, row 16 is 1, the rest are 0."""
    if weights is None:
        return x_t
    row = iota((64, 64), 0)
    x_t = x_t.astype(jnp.float32) * weights
    return jnp.where(row < KEY_DIM, x_t, jnp.where(row == KEY_DIM, weights, 0.0)).astype(jnp.bfloat16)


def load_state(s_ref, z_ref, index):
    """Reads a kernel state from global memory, or makes a zero one where s_ref is None."""
    if s_ref is None:
        return zeros(COLUMNS), zeros(KEY_DIM)
    return tuple(plgpu.load(ref.at[*index], layout=WGMMA, optimized=False) for ref in (s_ref, z_ref))


def store_state(s_ref, z_ref, index, state):
    s_ref[*index], z_ref[*index] = state


def state_scratch(published):
    """Shared memory of a state scan besides its operands, and of the states that it publishes."""
    scratch = {"phi": tile(BUFFERS, COLUMNS), "x_t": tile(BUFFERS, 64)}
    if published:
        scratch |= {
            "state_s": tile(BUFFERS, COLUMNS),
            "state_z": tile(BUFFERS, KEY_DIM),
            "ones_s": tile(None, KEY_DIM),
            "s_full": plgpu.Barrier(num_arrivals=1, num_barriers=BUFFERS),
            "s_empty": plgpu.Barrier(num_arrivals=1, num_barriers=BUFFERS),
            "empty": plgpu.Barrier(num_arrivals=1, num_barriers=STAGES),
        }
    return scratch
