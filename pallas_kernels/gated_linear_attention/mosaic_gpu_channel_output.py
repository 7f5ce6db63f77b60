"""Hopper kernel: outputs of all chunks at once, decays per channel."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import WARPGROUPS, Geometry, Stream
from pallas_kernels.gated_linear_attention.mosaic_gpu_levels import CHUNK, Chunk, chunk_scratch, scores, tile
from pallas_kernels.gated_linear_attention.mosaic_gpu_rows import Rows
from pallas_kernels.mosaic_gpu_tiles import launch

ARRAYS = ("q", "k", "v", "decay", "states")


def outputs(name, q, k, v, decay, states, g: Geometry, *, reverse, interpret=None):
    """Y of the states before chunks; in reverse dV, of v = dY and the cotangents of the states after them. Tiles."""

    def body(r):
        stream = Stream(r, g, *ARRAYS)
        chunk = Chunk(r, stream.warpgroup, (), None, interpret)
        rows = Rows(r.totals_s, interpret is not None)
        stream.load(0)
        chunk.write_indices()
        read = "k" if reverse else "q"

        def each_own(function):
            """function(i) for the columns of values of this warpgroup."""
            for i in range(g.columns):
                if g.together:
                    pl.when(stream.warpgroup == i)(lambda i=i: function(i))
                else:
                    function(i)

        def step(position, _):
            stream.wait()
            chunk.turn = position
            stream.zero = chunk.zero()
            q, k, decay = map(stream.own, ("q", "k", "decay"))
            operands = [r.operands_s.at[stream.warpgroup + stream.zero, i] for i in range(2)]
            chunk.operand = operands[0]
            chunk.store(scores(rows, operands, q, k, decay, chunk.zero, reverse=reverse))
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            stream.share()
            owners = range(g.rows) if g.together else [stream.warpgroup]
            weights = [r.operands_s.at[owner + stream.zero, 0] for owner in owners]
            outs = [r.out_s.at[stream.place * g.columns + i + stream.zero] for i in range(g.columns)]
            values, states = stream.tiles("v"), stream.tiles("states")

            def multiply(i):
                past = [state.transpose((1, 0)) for state in states[i * g.rows :][: g.rows]]
                pairs = [(x, values[i]) for x in weights] + list(zip(stream.tiles(read), past, strict=True))
                outs[i][...] = chunk.products(*pairs).astype(jnp.bfloat16)

            def store(i):
                at = stream.batch + stream.zero, stream.rows(position), (stream.head + stream.zero) * g.columns + i
                plgpu.copy_smem_to_gmem(outs[i], r.out.at[at])

            each_own(multiply)
            plgpu.commit_smem()
            stream.share()
            stream.load(position + 1)
            each_own(store)

        lax.fori_loop(0, stream.count, step, None)
        plgpu.wait_smem_to_gmem(0)

    scratch = g.scratch(*ARRAYS) | {"operands_s": tile(WARPGROUPS, 2), "out_s": tile(g.places * g.columns)}
    scratch["totals_s"] = plgpu.SMEM((4 * WARPGROUPS, CHUNK), jnp.float32)
    scratch |= chunk_scratch(WARPGROUPS, interpret)
    return launch(
        name, body, dict(zip(ARRAYS, (q, k, v, decay, states), strict=True)),
        {"out": jax.ShapeDtypeStruct(v.shape, v.dtype)}, scratch,
        grid=g.grid, warpgroups=WARPGROUPS, auto_barriers=False, approx_math=True, interpret=interpret,
    )["out"]  # fmt: skip
