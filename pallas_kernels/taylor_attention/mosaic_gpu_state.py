"""Inside the Hopper kernels: the warpgroup that scans the state. Layouts: `mosaic_gpu_layout`."""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, WGMMA, Mma, columns_to, iota, rows_to
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

    def factors(position):
        return (None, None) if block.decay is None else block.scan_factors(position)

    def prepare(position):
        """Writes phi(x) and [x, 1]^T diag(d w') of a chunk."""
        slot, buffer = lax.rem(position, jnp.int32(STAGES)), lax.rem(position, jnp.int32(BUFFERS))
        plgpu.barrier_wait(ring.full.at[slot])
        x = plgpu.load(stream(scanned.x, slot), layout=WGMMA)
        _write_transposed(refs.x_t, buffer, x, _weights(stream(scanned.z_weight, slot), factors(position)[1], PER_ROW))
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
        whole, decays = factors(position)
        if whole is not None:
            state = tuple(part * whole for part in state)
        u_t, x_t = (plgpu.load(x, layout=WGMMA) for x in (stream(scanned.u, slot).T, refs.x_t.at[buffer]))
        weights = _weights(stream(scanned.u_weight, slot), decays, PER_COLUMN)
        if weights is not None:
            u_t = (u_t.astype(jnp.float32) * columns_to(weights)).astype(jnp.bfloat16)

        def accumulate(s, z):
            mma.registers(s, u_t, refs.phi.at[buffer])
            mma.registers(z, x_t, stream(scanned.x, slot))

            @pl.when(position + 1 < ring.count)
            def _():
                prepare(position + 1)

        return mma.update(state, accumulate)

    # Row 16 of x^T sums x: the weights, or the constant 1, which chunks do not overwrite. The rows beyond stay 0.
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


def _weights(ref, decays, layout):
    """The (64,) weights of rows times their decays, None for 1."""
    w = None if ref is None else plgpu.load(ref, layout=layout)
    if decays is None:
        return w
    return decays(layout) if w is None else w * decays(layout)


def _write_transposed(x_t, buffer, x, weights):
    """Writes [x, 1]^T diag(weights) into rows 0..16 of a buffer, whose row 16 stays 1 where weights are None."""
    if weights is not None:
        weights = rows_to(weights, KEY_DIM)
        x = (x.astype(jnp.float32) * weights).astype(jnp.bfloat16)
        ones = jnp.where(iota((64, KEY_DIM), 1) == 0, weights, 0.0).astype(jnp.bfloat16)
        x_t.at[buffer, KEY_DIM : 2 * KEY_DIM].T[...] = ones
    x_t.at[buffer, 0:KEY_DIM].T[...] = x


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
