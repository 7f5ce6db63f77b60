"""Inside the Hopper kernels: the work of a thread block, its tiles, and the warpgroup that scans the state.

If b * h blocks do not fill the GPU, each of n_seg segments of the sequence gets a block of its own. `local_states` sums
the state of each segment from zero, in pieces, one block per multiprocessor; `border_states` turns these into the state
at every segment's border; the forward or backward kernel starts from it. Layouts: `mosaic_gpu_layout`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.lanes import RegisterLanes
from pallas_kernels.hopper.parts import Products, load, split, tiles_of, transposed, zeros
from pallas_kernels.hopper.ring import Ring, wait_last
from pallas_kernels.hopper.tiles import NARROW, PER_COLUMN, PER_ROW, WGMMA, WIDE, Mma, columns_to, iota, launch, rows_to
from pallas_kernels.taylor_attention import mosaic_gpu_features as scheme
from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    Cut,
    Heads,
    Segments,
    Widths,
    choose_pieces,
    join_pieces,
)

MIDDLE = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64))  # (., 32 n) bf16 tiles


def on_lanes(function, *arrays, width: int, dtype, interpreted: bool):
    """Applies function(lanes, *arrays) to (64, n) arrays in the layout of wgmma; returns (64, width) of dtype."""
    if interpreted:
        return function(scheme.ArrayLanes(jnp), *arrays).astype(dtype)

    @plgpu.inline_mgpu(
        arg_types=(WGMMA,) * len(arrays), return_type=plgpu.ShapeDtypeStruct((64, width), dtype, layout=WGMMA)
    )
    def run(ctx, *fragments):
        del ctx
        return function(RegisterLanes(fragments[0].layout), *fragments)

    return run(*arrays)


def features(mma: Mma, x, widths: Widths, cut: Cut, *, halved: bool):
    """Columns of phi(x) of x (64, keys) in registers, both of `Widths.dtype`; halved: for queries."""
    tiles = scheme.tiles_between(widths.groups, *cut)
    function = functools.partial(scheme.features, tiles=tiles, halved=halved)
    return on_lanes(function, x, width=cut[1] - cut[0], dtype=widths.dtype, interpreted=mma.staging is not None)


def pull_back(mma: Mma, x, u, start, widths: Widths, cut: Cut, *, halved: bool):
    """Returns start + sum_f u_f d phi_f / d x, (64, keys) float32, over the columns of a cut; start None: zeros."""
    tiles = scheme.tiles_between(widths.groups, *cut)
    function = functools.partial(scheme.pull_back, tiles=tiles, halved=halved)
    arrays = (x, u) if start is None else (x, u, start)
    return on_lanes(function, *arrays, width=widths.keys, dtype=jnp.float32, interpreted=mma.staging is not None)


def tile(slots, width, rows=CHUNK, *, other: int | None = None):
    """Shared bf16 (*slots, rows, width) tiles, filled by TMA and read by wgmma.

    other: width of the other operand of a wgmma, if that is in shared memory too; both need the same swizzle.
    """
    transforms = {16: NARROW, 64: WIDE}.get(other or width, MIDDLE)
    return plgpu.SMEM((*slots, rows, width), jnp.bfloat16, transforms=transforms)


def output_tile(width, dtype):
    """Shared (64, width) tile that TMA stores; None: 64 float32 numbers."""
    if width is None:
        return plgpu.SMEM((CHUNK,), jnp.float32)
    if dtype == jnp.bfloat16:
        return tile((), width)
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(4 * width))
    return plgpu.SMEM((CHUNK, width), dtype, transforms=transforms)


def staging_scratch(interpret, widths: Widths, warpgroups):
    """Shared memory of `this_mma`, in interpret mode."""
    return {} if interpret is None else {f"stage_{n}": tile((warpgroups,), n) for n in _staged(widths)}


def this_mma(refs, interpret, widths: Widths, warpgroup) -> Mma:
    """`Mma` of one warpgroup."""
    staging = None if interpret is None else tuple(getattr(refs, f"stage_{n}") for n in _staged(widths))
    return Mma(staging, warpgroup)


def _staged(widths: Widths) -> list[int]:
    """Widths of the operands that wgmma reads from registers."""
    return sorted({widths.keys, widths.values, CHUNK, *(stop - start for start, stop in widths.read)})


def write_constants(refs):
    """Writes `ones_s`, (64, keys) with ones in column 0, whose product with the rows of z from `keys` on broadcasts z1,
    and `index_s`, 0 .. 63."""
    ref = refs.ones_s
    refs.index_s[...] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW).astype(jnp.float32)
    ref[...] = jnp.where(iota(ref.shape, 1) == 0, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()


@dataclasses.dataclass(frozen=True)
class Decay:
    """Powers of one head's decay, with nonnegative exponents."""

    table: Any  # `decay_table` of the head, in shared memory
    head: Any

    def between(self, later, earlier):
        """decay^(later - earlier), for later >= earlier, float32."""
        return jnp.exp2(self.table[3, 0] * jnp.maximum(later - earlier, 0.0))

    def next_count(self, count):
        """Decayed number of tokens after one more whole chunk."""
        return count * self.table[3, 2] + self.table[3, 1]

    def whole(self, short):
        """decay^length of a chunk; short: whether it is the last, short chunk."""
        return self.table[3, 2 if short is False else jnp.where(short, 3, 2)]

    def since_start(self, layout):
        """decay^(i + 1): factor of the state before the chunk at row i."""
        return plgpu.load(self.table.at[0], layout=layout)

    def until_end(self, short, layout):
        """decay^(length - 1 - j): factor of row j in the state after the chunk."""
        return plgpu.load(self.table.at[1 if short is False else jnp.where(short, 2, 1)], layout=layout)


@dataclasses.dataclass(frozen=True)
class Block:
    """Work of one thread block: a batch row, a head (of queries and tile of values), a segment, and its chunks."""

    batch: Any
    head: Any
    segment: Any
    first_chunk: Any
    count: Any
    segments: Segments
    widths: Widths
    reverse: bool
    decay: Decay | None

    def row(self, position):
        """First row in time of the chunk at a scan position."""
        return (self.first_chunk + (self.count - 1 - position if self.reverse else position)) * CHUNK

    def is_short(self, position):
        """Whether the chunk is the last in time and short."""
        return self.segments.t % CHUNK > 0 and self.row(position) + CHUNK > self.segments.t

    def of_head(self, head):
        """Function of a row: index of a chunk in a (b, t, heads, .) operand."""
        return lambda row: (self.batch, pl.ds(row, CHUNK), head)

    def along_time(self, row):
        """Index of a chunk in a (b, heads, t) operand."""
        return (self.batch, self.head, pl.ds(row, CHUNK))

    def scan_factors(self, position):
        """Factors of the state scan: decay^L of the state, and a function layout -> factors (64,) of rows."""
        short = self.is_short(position)
        rows = self.decay.since_start if self.reverse else functools.partial(self.decay.until_end, short)
        return self.decay.whole(short), rows


def this_block(refs, heads: Heads, segments: Segments, *, reverse: bool, skip: int = 0, pieces: int = 1) -> Block:
    """Makes the `Block` of this thread block; skip: segments before the grid's first; pieces: blocks per segment."""
    head, index = lax.axis_index("h"), lax.axis_index("segment")
    segment = index // pieces + skip
    first = segment * segments.chunks_each
    count = jnp.minimum(segments.chunks - first, segments.chunks_each)
    if pieces > 1:
        each = segments.piece_chunks(pieces)
        before = lax.rem(index, jnp.int32(pieces)) * each
        first, count = first + before, jnp.clip(count - before, 0, each)
    decay = None if refs.decay is None else Decay(refs.decay_s, heads.of_query(head))
    return Block(lax.axis_index("b"), head, segment, first, count, segments, heads.widths, reverse, decay)


def decay_scratch(decay):
    """Shared memory of a head's powers of decay, loaded once per block."""
    if decay is None:
        return {}
    return {"decay_s": plgpu.SMEM(decay.shape[1:], jnp.float32), "decay_full": plgpu.Barrier(num_arrivals=1)}


def load_decay(refs, block: Block):
    if block.decay is not None:
        plgpu.copy_gmem_to_smem(refs.decay.at[block.decay.head], refs.decay_s, refs.decay_full)


def wait_decay(refs, block: Block):
    if block.decay is not None:
        plgpu.barrier_wait(refs.decay_full)


def stream_ring(refs, streams, block: Block, empty) -> Ring:
    """The ring of named streams. A stream is (array (b, t, parts * heads, .) of `parts.operand`, function block head ->
    head), or (array (b, blocks, padded t) float32, None)."""
    loads = []
    for name, (array, head) in streams.items():
        ref, ring = getattr(refs, name), getattr(refs, f"{name}_s")
        if head is None:
            loads.append((ref, block.along_time, lambda slot, ring=ring: ring.at[slot]))
            continue
        for part in range(block.widths.parts):
            at = head(block.head) + part * (array.shape[2] // block.widths.parts)
            loads.append((ref, block.of_head(at), lambda slot, ring=ring, part=part: ring.at[slot, part]))
    stages = block.widths.stages
    return Ring(tuple(loads), row=block.row, count=block.count, stages=stages, full=refs.full, empty=empty)


def stream_scratch(streams, widths: Widths):
    """Shared memory of `stream_ring`: a ring of slots `NAME_s` for each stream, and its barrier."""
    stages, parts = widths.stages, widths.parts
    rows = plgpu.SMEM((stages, CHUNK), jnp.float32)
    rings = {
        f"{name}_s": rows if head is None else tile((stages, parts), array.shape[-1])
        for name, (array, head) in streams.items()
    }
    loads = sum(1 if head is None else parts for _, head in streams.values())
    return rings | {"full": plgpu.Barrier(num_arrivals=loads, num_barriers=stages)}


BUFFERS = 2  # of published states, and of features


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Streams that a state scan sums, by name."""

    x: str  # (64, keys) keys, or queries in the reverse scan
    u: str  # (64, values) values, or dy in the reverse scan
    query_scale: float | None = None  # if x are queries: features of query_scale * x, with query weights
    u_weight: str | None = None  # (64,) row weights of u (1 / den in the reverse scan); None: 1
    z_weight: str | None = None  # ... of z (dden in the reverse scan)


def scan_states(mma: Mma, refs, scanned: Scanned, ring: Ring, block: Block, state, *, published: bool):
    """Scans the chunks of one segment: publishes the state before each chunk, then adds the chunk to it.

    S <- g^L S + phi(x)^T diag(d w) u,  Z <- g^L Z + [x, 1]^T diag(d w') x, over the L rows of the chunk, with row
    decays d and weights w, w'. The features of the next piece or chunk are computed while products are in flight.
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
        """Shared tiles of the parts of a piece of phi(x)."""
        buffer = lax.rem(position if pieces == 1 else position * pieces + piece, jnp.int32(BUFFERS))
        start, stop = widths.scanned[piece]
        whole = tiles_of(refs.phi.at[buffer])
        return whole if stop - start == refs.phi.shape[-1] else tuple(x.at[:, 0 : stop - start] for x in whole)

    def prepare(position, piece):
        """Writes a piece of phi(x); before the first one also [x, 1]^T diag(d w'), and u if it is weighted."""
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
            # Features and x^T are written, and every warp has left the previous ones; `_publish` has this barrier.
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
                for x in tiles(scanned.x, slot):  # x^T is one tile with all parts
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
            plgpu.commit_smem()  # as for the first piece
            (parts[piece],) = mma.update((parts[piece],), functools.partial(accumulate, piece))
        return (*parts, z)

    # Row `keys` of x^T sums x: weights, or the constant 1, which chunks do not overwrite. Other rows stay 0.
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
    """Rounds the state into the buffer of this position, after the other warpgroup has left it."""
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
    """Writes diag(d w) u, (64, values), if there are weights; else wgmma reads u itself."""
    weights = _weights(weight, decays, PER_ROW)
    if weights is not None:
        u = load(u).astype(jnp.float32) * rows_to(weights, widths.values)
        for i, part in enumerate(split(u, widths.parts)):
            refs.u_w[buffer, i] = part


def _weights(ref, decays, layout):
    """Weights of rows times their decays, (64,); None: 1."""
    w = None if ref is None else plgpu.load(ref, layout=layout)
    if decays is None:
        return w
    return decays(layout) if w is None else w * decays(layout)


def _write_transposed(widths: Widths, x_t, buffer, x, weights):
    """Writes [x, 1]^T diag(weights) into a buffer, 2 `keys` rows per part, so that one product sums all parts; row
    `keys` stays 1 if weights are None."""
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
    """Zero state in the pieces of `scan_states`."""
    sizes = [stop - start for start, stop in widths.scanned]
    shapes = [(widths.values, n) if widths.values_first else (n, widths.values) for n in sizes]
    return tuple(zeros(*shape) for shape in (*shapes, (CHUNK, widths.keys)))


def load_start(refs, block: Block):
    """Loads the state before a segment from s0 and z0 in global memory (`border_states`).

    Without an outer boundary, s0 and z0 lack the first segment of the scan, which starts from zeros.
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
    """Shared memory of a state scan and of its published states, without the streams; weighted: u has weights or
    decays."""
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
    """Sums u_i phi(x_i) over every segment but the last in time (reverse: but the first).

    streams: as for `stream_ring`; only the names in `scanned` are read; decay: `decay_table` or None. Returns kernel
    states s and z (b, blocks, n_seg - 1, ., .) in order of time; None for one segment.
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
        interpret=interpret,
    )
    return tuple(join_pieces(out[i], decay, segments=segments, pieces=pieces, reverse=reverse) for i in "sz")
