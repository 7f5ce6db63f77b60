"""Phase 1 of splitting the sequence over thread blocks: the local state of every segment.

When b * h blocks do not fill the chip, each of n_seg segments of the sequence gets a block of its own. Phase
1 (the kernel here) sums the state of each segment from zero; phase 2 (`border_states`, XLA) turns these into
the state at every segment's border; phase 3 is the forward or backward kernel, started from it. Phase 1 reads
k and v once more: its cost. Since sums need no order, phase 1 cuts segments further, into pieces for a block on every
core.
"""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu_tiles import launch
from pallas_kernels.taylor_attention.mosaic_gpu_block import (
    decay_scratch,
    load_decay,
    stream_ring,
    stream_scratch,
    this_block,
    wait_decay,
)
from pallas_kernels.taylor_attention.mosaic_gpu_layout import Heads
from pallas_kernels.taylor_attention.mosaic_gpu_split import Segments, choose_pieces, join_pieces
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    Scanned,
    scan_states,
    state_scratch,
    store_state,
    zero_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import staging_scratch, this_mma
from pallas_kernels.taylor_attention.mosaic_gpu_widths import CHUNK


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
