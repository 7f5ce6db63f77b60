"""The state on Hopper: the warpgroup that scans it inside every kernel, and the kernel of local states.

When b * h blocks do not fill the chip, each of n_seg segments of the sequence gets a block of its own. Phase 1
(`local_states`) sums the state of each segment from zero; phase 2 (`border_states`, XLA) turns these into the state at
every segment's border; phase 3 is the forward or backward kernel, started from it. Phase 1 reads k and v once more: its
cost. Since sums need no order, it cuts segments further, into pieces for a block on every core.

Layouts: `mosaic_gpu_layout`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.ring import Ring, wait_last
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, WGMMA, Mma, columns_to, iota, launch, rows_to
from pallas_kernels.taylor_attention.mosaic_gpu_block import (
    Block,
    decay_scratch,
    load_decay,
    stream_ring,
    stream_scratch,
    this_block,
    wait_decay,
)
from pallas_kernels.taylor_attention.mosaic_gpu_layout import Heads
from pallas_kernels.taylor_attention.mosaic_gpu_parts import (
    Products,
    features,
    load,
    split,
    staging_scratch,
    this_mma,
    tile,
    tiles_of,
    transposed,
    zeros,
)
from pallas_kernels.taylor_attention.mosaic_gpu_split import CHUNK, Segments, Widths, choose_pieces, join_pieces

BUFFERS = 2  # of states that the two warpgroups pass to each other, and of features


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Sums of a state scan, by the names of its streams."""

    x: str  # (64, keys) keys, or queries in the reverse scan
    u: str  # (64, values) values, or dy in the reverse scan
    query_scale: float | None = None  # x are queries: features of query_scale * x, with the query weights
    u_weight: str | None = None  # (64,) row weights of u (1 / den in the reverse scan); None: 1
    z_weight: str | None = None  # ... of z (dden in the reverse scan)


def scan_states(mma: Mma, refs, scanned: Scanned, ring: Ring, block: Block, state, *, published: bool):
    """Scans the chunks of one segment: publishes the state before each chunk, then adds the chunk to it.

    S <- g^L S + phi(x)^T diag(d w) u,  Z <- g^L Z + [x, 1]^T diag(d w') x, over the L rows of the chunk, with row
    decays d and weights w, w'. The features that come next, those of the next piece or of the next chunk, form while
    the products of these are in flight.
    refs: the namespace of `launch`, with the scratch of `state_scratch`; state: (pieces of s, z) float32. Returns the
    last state.
    """
    widths = block.widths
    pieces = len(widths.scanned)

    def stream(name, slot):
        return None if name is None else getattr(refs, f"{name}_s").at[slot]

    def factors(position):
        return (None, None) if block.decay is None else block.scan_factors(position)

    def tiles(name, slot):
        return tiles_of(stream(name, slot))

    def phi_of(position, piece):
        """Where the parts of a piece of phi(x) are."""
        buffer = lax.rem(position if pieces == 1 else position * pieces + piece, jnp.int32(BUFFERS))
        start, stop = widths.scanned[piece]
        whole = tiles_of(refs.phi.at[buffer])
        return whole if stop - start == refs.phi.shape[-1] else tuple(x.at[:, 0 : stop - start] for x in whole)

    def prepare(position, piece):
        """Writes a piece of phi(x), and before the first [x, 1]^T diag(d w') of a chunk, and u where it is weighted."""
        slot, buffer = lax.rem(position, jnp.int32(ring.stages)), lax.rem(position, jnp.int32(BUFFERS))
        if piece == 0:
            plgpu.barrier_wait(ring.full.at[slot])
        x = load(tiles(scanned.x, slot))
        if piece == 0:
            decays = factors(position)[1]
            _write_transposed(widths, refs.x_t, buffer, x, _weights(stream(scanned.z_weight, slot), decays, PER_ROW))
            if not widths.values_first:
                _write_weighted(widths, refs, buffer, tiles(scanned.u, slot), stream(scanned.u_weight, slot), decays)
        if scanned.query_scale is not None:
            x = x * jnp.asarray(scanned.query_scale, x.dtype)
        halved = scanned.query_scale is not None
        phi = features(mma, x, widths, widths.scanned[piece], halved=halved)
        for ref, part in zip(phi_of(position, piece), split(phi, widths.parts), strict=True):
            ref[...] = part

    def chunk(position, state):
        slot, buffer = lax.rem(position, jnp.int32(ring.stages)), lax.rem(position, jnp.int32(BUFFERS))
        ring.await_free(position)
        if published:
            _publish(refs, widths, position, state)
        else:
            # Features and x^T are there, and every warp has left those before; publishing has this barrier in it.
            plgpu.commit_smem()
        ring.refill(position)
        whole, decays = factors(position)
        if whole is not None:
            state = tuple(part * whole for part in state)
        u_t = None
        if widths.values_first:
            u_t = _transposed(tiles(scanned.u, slot), stream(scanned.u_weight, slot), decays)
        x_t = plgpu.load(refs.x_t.at[buffer], layout=WGMMA)

        def accumulate(piece, s, z=None):
            products, phi = Products(mma, widths.parts), phi_of(position, piece)
            if u_t is not None:
                products.registers(s, u_t, phi)
            else:
                u = tiles_of(refs.u_w.at[buffer]) if hasattr(refs, "u_w") else tiles(scanned.u, slot)
                products.tiles(s, transposed(phi), u)
            if z is not None:
                for x in tiles(scanned.x, slot):  # x^T is one tile, with all its parts
                    mma.registers(z, x_t, x)
            if piece + 1 < pieces:
                prepare(position, piece + 1)
                return

            @pl.when(position + 1 < ring.count)
            def _():
                prepare(position + 1, 0)

        *parts, z = state
        parts[0], z = mma.update((parts[0], z), functools.partial(accumulate, 0))
        for piece in range(1, pieces):
            plgpu.commit_smem()  # as that of the first piece
            (parts[piece],) = mma.update((parts[piece],), functools.partial(accumulate, piece))
        return (*parts, z)

    # The row of x^T after those of x sums x: weights, or the constant 1, which chunks do not overwrite. Others stay 0.
    for i in range(BUFFERS):
        refs.x_t[i] = jnp.where(iota((64, 64), 0) == widths.keys, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()

    @pl.when(ring.count > 0)
    def _():
        prepare(jnp.int32(0), 0)

    state = lax.fori_loop(0, ring.count, chunk, state)
    ring.drain()
    if published:
        wait_last(refs.s_empty, ring.count, BUFFERS)
    return state


def _publish(refs, widths: Widths, position, state):
    """Rounds the state into the buffer of this position, once the other warpgroup has left it."""
    buffer = lax.rem(position, jnp.int32(BUFFERS))

    @pl.when(position >= BUFFERS)
    def _():
        plgpu.barrier_wait(refs.s_empty.at[buffer])

    *pieces, z = (split(x, widths.parts) for x in state)
    for cut, piece in zip(widths.scanned, pieces, strict=True):
        for i, part in enumerate(piece):
            refs.state_s[buffer, i, *widths.part(cut)] = part
    for i, part in enumerate(z):
        refs.state_z[buffer, i] = part
    plgpu.commit_smem()
    plgpu.barrier_arrive(refs.s_full.at[buffer])


def _transposed(u, weight, decays):
    """u^T diag(d w), (values, 64) in registers."""
    u_t = load(transposed(u))
    weights = _weights(weight, decays, PER_COLUMN)
    return u_t if weights is None else (u_t.astype(jnp.float32) * columns_to(weights)).astype(u_t.dtype)


def _write_weighted(widths: Widths, refs, buffer, u, weight, decays):
    """Writes diag(d w) u, (64, values), where there are weights: else wgmma takes u as it came."""
    weights = _weights(weight, decays, PER_ROW)
    if weights is not None:
        u = load(u).astype(jnp.float32) * rows_to(weights, widths.values)
        for i, part in enumerate(split(u, widths.parts)):
            refs.u_w[buffer, i] = part


def _weights(ref, decays, layout):
    """The (64,) weights of rows times their decays, None for 1."""
    w = None if ref is None else plgpu.load(ref, layout=layout)
    if decays is None:
        return w
    return decays(layout) if w is None else w * decays(layout)


def _write_transposed(widths: Widths, x_t, buffer, x, weights):
    """Writes [x, 1]^T diag(weights) into the rows of a buffer, 2 `keys` for each part, so that one product sums those
    of all parts; row `keys` stays 1 where weights are None."""
    keys = widths.keys
    if weights is not None:
        weights = rows_to(weights, keys)
        x = (x.astype(jnp.float32) * weights).astype(x.dtype)
        ones = jnp.where(iota((64, keys), 1) == 0, weights, 0.0)
        for i, part in enumerate(split(ones, widths.parts)):
            x_t.at[buffer, (2 * i + 1) * keys : (2 * i + 2) * keys].T[...] = part
    for i, part in enumerate(split(x, widths.parts)):
        x_t.at[buffer, 2 * i * keys : (2 * i + 1) * keys].T[...] = part


def zero_state(widths: Widths):
    """In the parts of `scan_states`."""
    sizes = [stop - start for start, stop in widths.scanned]
    shapes = [(widths.values, n) if widths.values_first else (n, widths.values) for n in sizes]
    return tuple(zeros(*shape) for shape in (*shapes, (CHUNK, widths.keys)))


def load_start(refs, block: Block):
    """The state where the scan of a segment starts, from s0 and z0 in global memory (`border_states`).

    Without an outer boundary these are of all segments but the first of the scan, which starts from zeros.
    """
    if refs.s0 is None:
        return zero_state(block.widths)
    given, first = refs.s0.shape[2], block.segments.count - 1 if block.reverse else 0
    bounded = given == block.segments.count
    at = block.segment if bounded else jnp.clip(block.segment - (0 if block.reverse else 1), 0, given - 1)
    index = (block.batch, block.head, at)
    parts = [refs.s0.at[*index, *block.widths.part(cut)] for cut in block.widths.scanned]
    state = tuple(plgpu.load(ref, layout=WGMMA, optimized=False) for ref in (*parts, refs.z0.at[*index]))
    return state if bounded else tuple(jnp.where(block.segment == first, 0.0, part) for part in state)


def store_state(widths: Widths, s_ref, z_ref, index, state):
    *parts, z = state
    for cut, part in zip(widths.scanned, parts, strict=True):
        s_ref[*index, *widths.part(cut)] = part
    z_ref[*index] = z


def state_scratch(widths: Widths, *, published: bool, weighted: bool):
    """Shared memory of a state scan besides its operands, and of the states that it publishes; weighted: u has weights,
    or decays."""
    start, stop = widths.scanned[0]
    parts, other = widths.parts, None if widths.values_first else widths.values
    scratch = {"phi": tile((BUFFERS, parts), stop - start, other=other), "x_t": tile((BUFFERS,), 64)}
    if weighted and not widths.values_first:
        scratch |= {"u_w": tile((BUFFERS, parts), widths.values)}
    if published:
        rows, columns = widths.state
        scratch |= {
            "state_s": tile((BUFFERS, parts), columns, rows),
            "state_z": tile((BUFFERS, parts), widths.keys),
            "ones_s": tile((), widths.keys),
            "index_s": plgpu.SMEM((CHUNK,), jnp.float32),
            "s_full": plgpu.Barrier(num_arrivals=1, num_barriers=BUFFERS),
            "s_empty": plgpu.Barrier(num_arrivals=1, num_barriers=BUFFERS),
            "empty": plgpu.Barrier(num_arrivals=1, num_barriers=widths.stages),
        }
    return scratch


def local_states(streams, scanned: Scanned, decay, *, heads: Heads, segments: Segments, reverse: bool, interpret):
    """Sum of u_i phi(x_i) over each segment that another one needs: all but the last in time (reverse: but the first).

    streams: those of the kernel that starts from the states (`stream_ring`), of which the names in `scanned` are read;
    decay: `decay_table` or None. Returns kernel states s and z (b, blocks, n_seg - 1, ., .)
    in order of time; None for one segment.
    """
    if segments.count == 1:
        return None
    names = (scanned.x, scanned.u, scanned.u_weight, scanned.z_weight)
    streams = {name: streams[name] for name in names if name is not None}
    widths = heads.widths
    b, n = streams[scanned.x][0].shape[0], segments.count - 1
    pieces = segments.pieces(choose_pieces(b * heads.blocks * n, segments.chunks_each))

    def body(r):
        block = this_block(r, heads, segments, reverse=reverse, skip=1 if reverse else 0, pieces=pieces)
        ring = stream_ring(r, streams, block, None)
        load_decay(r, block)
        ring.start()
        wait_decay(r, block)
        state = zero_state(widths)
        state = scan_states(this_mma(r, interpret, widths, 0), r, scanned, ring, block, state, published=False)
        store_state(widths, r.s, r.z, (block.batch, block.head, lax.axis_index("segment")), state)

    out = launch(
        "taylor_segment_states",
        body,
        {**{name: array for name, (array, _) in streams.items()}, "decay": decay},
        {
            "s": jax.ShapeDtypeStruct((b, heads.blocks, n * pieces, *widths.state), jnp.float32),
            "z": jax.ShapeDtypeStruct((b, heads.blocks, n * pieces, CHUNK, widths.keys), jnp.float32),
        },
        {
            **stream_scratch(streams, widths),
            **state_scratch(widths, published=False, weighted=scanned.u_weight is not None or decay is not None),
            **decay_scratch(decay),
            **staging_scratch(interpret, widths, 1),
        },
        grid={"b": b, "h": heads.blocks, "segment": n * pieces},
        warpgroups=1,
        auto_barriers=False,
        interpret=interpret,
    )
    return tuple(join_pieces(out[i], decay, segments=segments, pieces=pieces, reverse=reverse) for i in "sz")
