"""The frame of the forward, dq and dkdv kernels: two warpgroups that share the chunks of one segment.

Warpgroup 1 issues TMA, scans the state and publishes it, in parts of bfloat16, before each chunk. Warpgroup 0 takes
the chunks in turn: it reads the published state and writes the results. Two, not three: each may use 255 registers
without setmaxnreg, which ptxas ignores under jax 0.12.

Pallas' own barriers, around each store to shared memory and before each copy, are off. They guard what one warp of a
warpgroup could do to the others; here other barriers do. A store is followed by `commit_smem` (a fence towards wgmma
and TMA, and a barrier) before anyone reads it. It follows a barrier that every warp reaches when it has left what the
store overwrites:
  features, x^T, u   two buffers; those of the next chunk, or piece of features, are written behind the commit of this
                     one, which follows the wait for the products of the one before, their last readers;
  published states   two buffers; behind `s_empty`, on which every thread of warpgroup 0 arrives;
  staged results     behind `wait_smem_to_gmem`, which ends in a barrier.
A slot of the ring is filled again behind `empty`, on which every thread of warpgroup 0 arrives, and behind a commit:
all warps of warpgroup 1 left it two chunks ago, and the commit orders reads before the copy. Every thread that reads
what `full` or `s_full` announces waits for it. Interpret mode, with one thread a warpgroup, checks fences and the order
of warpgroups, not this.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import launch
from pallas_kernels.taylor_attention.mosaic_gpu_block import (
    decay_scratch,
    load_decay,
    stream_ring,
    stream_scratch,
    this_block,
    wait_decay,
)
from pallas_kernels.taylor_attention.mosaic_gpu_chunk import ChunkStep
from pallas_kernels.taylor_attention.mosaic_gpu_parts import Products
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    Scanned,
    load_start,
    scan_states,
    state_scratch,
    store_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import output_tile, staging_scratch, this_mma, write_constants
from pallas_kernels.taylor_attention.mosaic_gpu_widths import CHUNK


def paired_kernel(
    name, step, *, streams, scanned: Scanned, start, decay, scale, outputs, last, heads, segments, reverse, interpret,
    counts=None,
):  # fmt: skip
    """Runs step(ChunkStep, count) -> ({output: (64, .) values}, count) on every chunk; returns arrays by output name.

    streams: as for `stream_ring`; start: kernel states of `border_states`, where the scans of segments start; scale: of
    s, a power of two; outputs: name -> width of a (b, t, blocks, width) array of `Widths.dtype`, None: (b, blocks,
    padded t) float32; last: also return "s" and "z", the state after the scan of all segments; counts: (b, h, n_seg)
    float32 that steps pass on from chunk to chunk, or None.
    """

    widths = heads.widths

    def body(r):
        block = this_block(r, heads, segments, reverse=reverse)
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup == 1)
        def _():
            load_decay(r, block)
            ring = stream_ring(r, streams, block, r.empty)
            ring.start()
            wait_decay(r, block)
            state = load_start(r, block)
            state = scan_states(this_mma(r, interpret, widths, 1), r, scanned, ring, block, state, published=True)
            if last:

                @pl.when(block.segment == (0 if reverse else segments.count - 1))
                def _():
                    store_state(widths, r.s, r.z, (block.batch, block.head), state)

        @pl.when(warpgroup == 0)
        def _():
            write_constants(r)
            wait_decay(r, block)

            def chunk(position, count):
                plgpu.barrier_wait(r.full.at[lax.rem(position, jnp.int32(widths.stages))])
                products = Products(this_mma(r, interpret, widths, 0), widths.parts)
                results, count = step(ChunkStep(r, products, block, position, scale), count)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                for output, x in results.items():
                    staged = getattr(r, f"{output}_o")
                    staged[...] = x.astype(staged.dtype)
                plgpu.commit_smem()
                row = block.row(position)
                for output, width in outputs.items():
                    index = block.along_time(row) if width is None else block.of_head(block.head)(row)
                    plgpu.copy_smem_to_gmem(getattr(r, f"{output}_o"), getattr(r, output).at[index])
                return count

            head = heads.of_query(block.head)
            lax.fori_loop(0, block.count, chunk, None if counts is None else r.counts[block.batch, head, block.segment])
            plgpu.wait_smem_to_gmem(0)

    s0, z0 = (None, None) if start is None else start
    b, t = streams["q"][0].shape[:2]
    blocks, f32, shape = heads.blocks, jnp.float32, jax.ShapeDtypeStruct
    results = {
        output: shape((b, blocks, segments.padded), f32) if w is None else shape((b, t, blocks, w), widths.dtype)
        for output, w in outputs.items()
    }
    if last:
        results["s"] = shape((b, blocks, *widths.state), f32)
        results["z"] = shape((b, blocks, CHUNK, widths.keys), f32)
    operands = {name: array for name, (array, _) in streams.items()}
    return launch(
        name,
        body,
        {**operands, "counts": counts, "s0": s0, "z0": z0, "decay": decay},
        results,
        {
            **stream_scratch(streams, widths),
            **{f"{output}_o": output_tile(width, widths.dtype) for output, width in outputs.items()},
            **state_scratch(widths, published=True, weighted=scanned.u_weight is not None or decay is not None),
            **decay_scratch(decay),
            **staging_scratch(interpret, widths, 2),
        },
        grid={"b": b, "h": blocks, "segment": segments.count},
        warpgroups=2,
        auto_barriers=False,
        interpret=interpret,
    )
