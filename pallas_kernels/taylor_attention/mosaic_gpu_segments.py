"""Phase 1 of splitting the sequence over thread blocks: the local state of every segment.

When b * h blocks do not fill the chip, each of n_seg segments of the sequence gets a block of its own. Phase
1 (the kernel here) sums the state of each segment from zero; phase 2 (`border_states`, XLA) turns these into
the state at every segment's border; phase 3 is the forward or backward kernel, started from it. Phase 1 reads
k and v once more: its cost.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    GROUPS,
    KEY_DIM,
    VALUE_DIM,
    Heads,
    Segments,
    selection_matrices,
)
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    STAGES,
    Mma,
    Ring,
    StateRefs,
    launch,
    load_constants,
    load_state,
    scan_states,
    selection_scratch,
    staging_scratch,
    state_scratch,
    store_state,
    this_block,
    tile,
)


def local_states(x, u, weight, decay, *, heads: Heads, segments: Segments, reverse: bool, interpret):
    """Sum of u_i phi(x_i) over each segment that another one needs: all but the last in time (reverse: but
    the first).

    Forward: x keys (b, t, key heads, 16), u values (b, t, value heads, 64), no weight. Reverse: x queries (b,
    t, h, 16), with the query-side feature weights, u dnum (b, t, blocks, 64), weight dden (b, blocks, padded
    t) float32.
    decay: `decay_table` or None.
    Returns s (b, blocks, n_seg - 1, 3, 64, 64), z (b, blocks, n_seg - 1, 64, 16) float32 in order of time.
    """
    f32 = jnp.float32
    plain, weighted, second = selection_matrices()
    x_head, u_head = (heads.of_query, heads.of_block) if reverse else (heads.of_key, heads.of_value)

    def body(r):
        block = this_block(r.decay, heads, segments, reverse=reverse, skip=1 if reverse else 0)
        loads = [(r.x, block.of_head(x_head(block.head)), r.x_s), (r.u, block.of_head(u_head(block.head)), r.u_s)]
        if weight is not None:
            loads.append((r.weight, block.along_time, r.weight_s))
        ring = Ring(tuple(loads), row=block.row, count=block.count, full=r.full, empty=None)
        load_constants(((r.first, r.first_s), (r.second, r.second_s)), r.constants)
        ring.start()
        plgpu.barrier_wait(r.constants)
        refs = StateRefs(
            x=r.x_s,
            u=r.u_s,
            weight=None if weight is None else r.weight_s,
            first=r.first_s,
            second=r.second_s,
            phi=r.phi,
            x_t=r.x_t,
        )
        mma = Mma(None if interpret is None else (r.stage_narrow, r.stage_wide), 0)
        state = scan_states(mma, refs, ring, load_state(None, None, None), block.scan_factors())
        store_state(r.s, r.z, (block.batch, block.head, block.segment - (1 if reverse else 0)), state)

    b, n = x.shape[0], segments.count - 1
    out = launch(
        "taylor_segment_states",
        body,
        {"x": x, "u": u, "weight": weight, "decay": decay, "first": weighted if reverse else plain, "second": second},
        {
            "s": jax.ShapeDtypeStruct((b, heads.blocks, n, GROUPS, VALUE_DIM, 64), f32),
            "z": jax.ShapeDtypeStruct((b, heads.blocks, n, 64, KEY_DIM), f32),
        },
        dict(
            x_s=tile(STAGES, KEY_DIM),
            u_s=tile(STAGES, VALUE_DIM),
            weight_s=plgpu.SMEM((STAGES, CHUNK), f32),
            full=plgpu.Barrier(num_arrivals=2 if weight is None else 3, num_barriers=STAGES),
            constants=plgpu.Barrier(num_arrivals=2),
            **state_scratch(published=False),
            **selection_scratch("first", "second"),
            **staging_scratch(interpret, 1),
        ),
        grid=(b, heads.blocks, n),
        warpgroups=1,
        interpret=interpret,
    )
    return out["s"], out["z"]
