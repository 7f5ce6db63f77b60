"""Phase 1 of splitting the sequence over thread blocks: the local state of every segment.

When b * h blocks do not fill the chip, each of n_seg segments of the sequence gets a block of its own. Phase
1 (the kernel here) sums the state of each segment from zero; phase 2 (`border_states`, XLA) turns these into
the state at every segment's border; phase 3 is the forward or backward kernel, started from it. Phase 1 reads
k and v once more: its cost.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import Mma, launch
from pallas_kernels.taylor_attention.mosaic_gpu_block import (
    constant_scratch,
    load_constants,
    selections,
    stream_ring,
    stream_scratch,
    this_block,
)
from pallas_kernels.taylor_attention.mosaic_gpu_layout import GROUPS, KEY_DIM, VALUE_DIM, Heads, Segments
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    Scanned,
    load_state,
    scan_states,
    state_scratch,
    store_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import staging_scratch


def local_states(x, u, weight, decay, *, scale, heads: Heads, segments: Segments, reverse: bool, interpret):
    """Sum of u_i phi(x_i) over each segment that another one needs: all but the last in time (reverse: but
    the first).

    Forward: x keys (b, t, key heads, 16), u values (b, t, value heads, 64), no weight. Reverse: x queries (b,
    t, h, 16), with the query-side feature weights, u dnum (b, t, blocks, 64), weight dden (b, blocks, padded
    t) float32.
    decay: `decay_table` or None; scale: of the query-side features.
    Returns s (b, blocks, n_seg - 1, 3, 64, 64), z (b, blocks, n_seg - 1, 64, 16) float32 in order of time.
    """
    x_head, u_head = (heads.of_query, heads.of_block) if reverse else (heads.of_key, heads.of_value)
    streams = {"x": (x, x_head), "u": (u, u_head)} | ({} if weight is None else {"weight": (weight, None)})
    scanned = Scanned("x", "u", "first_q" if reverse else "first", None if weight is None else "weight")
    matrices = selections(scanned.first, "second", scale=scale)

    def body(r):
        block = this_block(r, heads, segments, reverse=reverse, skip=1 if reverse else 0)
        ring = stream_ring(r, streams, block, None)
        load_constants(r, matrices, block)
        ring.start()
        plgpu.barrier_wait(r.constants)
        mma = Mma(None if interpret is None else (r.stage_narrow, r.stage_wide), 0)
        state = load_state(None, None, None)
        state = scan_states(mma, r, scanned, ring, block, state, published=False)
        store_state(r.s, r.z, (block.batch, block.head, block.segment - (1 if reverse else 0)), state)

    b, n = x.shape[0], segments.count - 1
    out = launch(
        "taylor_segment_states",
        body,
        {**{name: array for name, (array, _) in streams.items()}, "decay": decay, **matrices},
        {
            "s": jax.ShapeDtypeStruct((b, heads.blocks, n, GROUPS, VALUE_DIM, 64), jnp.float32),
            "z": jax.ShapeDtypeStruct((b, heads.blocks, n, 64, KEY_DIM), jnp.float32),
        },
        {
            **stream_scratch(streams),
            **state_scratch(published=False),
            **constant_scratch(matrices, decay),
            **staging_scratch(interpret, 1),
        },
        grid={"b": b, "h": heads.blocks, "segment": n},
        warpgroups=1,
        interpret=interpret,
    )
    return out["s"], out["z"]
