"""Hopper kernel: outputs of all chunks at once, decays per channel."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import WARPGROUPS, Geometry, Stream
from pallas_kernels.gated_linear_attention.mosaic_gpu_levels import Chunk, level_scratch, load, tile
from pallas_kernels.mosaic_gpu_tiles import launch

ARRAYS = ("q", "k", "v", "decay", "states")


def outputs(name, q, k, v, decay, states, g: Geometry, *, reverse, interpret=None):
    """Y of the states before chunks; in reverse dV, of v = dY and the cotangents of the states after them. Tiles."""

    def body(r):
        stream = Stream(r, g, *ARRAYS)
        parts = [r.parts_s.at[stream.warpgroup, i] for i in range(2)]
        chunk = Chunk(r, stream.warpgroup, parts, r.operand_s.at[stream.warpgroup], interpret)
        stream.load(0)
        chunk.write_indices()
        pl.when(stream.warpgroup == 0)(chunk.write_levels)
        stream.meet()
        q, k, decay = map(stream.own, ("q", "k", "decay"))
        read, outs = "k" if reverse else "q", [r.out_s.at[stream.place * g.columns + i] for i in range(g.columns)]

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
            chunk.split(decay)
            scores = chunk.scores(q, k, reverse=reverse)
            own = stream.own(read)
            own[...] = (load(own) * (chunk.until() if reverse else chunk.since())).astype(jnp.bfloat16)
            chunk.store(scores)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            stream.share()
            weights = [r.operand_s.at[i if g.together else stream.warpgroup] for i in range(g.rows)]
            values, states = stream.tiles("v"), stream.tiles("states")

            def multiply(i):
                past = [state.transpose((1, 0)) for state in states[i * g.rows :][: g.rows]]
                pairs = [(x, values[i]) for x in weights] + list(zip(stream.tiles(read), past, strict=True))
                outs[i][...] = chunk.products(*pairs).astype(jnp.bfloat16)

            def store(i):
                at = stream.batch, stream.rows(position), stream.head * g.columns + i
                plgpu.copy_smem_to_gmem(outs[i], r.out.at[at])

            each_own(multiply)
            plgpu.commit_smem()
            stream.share()
            stream.load(position + 1)
            each_own(store)

        lax.fori_loop(0, stream.count, step, None)
        plgpu.wait_smem_to_gmem(0)

    scratch = g.scratch(*ARRAYS) | level_scratch(WARPGROUPS, interpret, levels=True)
    scratch |= {"parts_s": tile(WARPGROUPS, 2), "operand_s": tile(WARPGROUPS), "out_s": tile(g.places * g.columns)}
    return launch(
        name, body, dict(zip(ARRAYS, (q, k, v, decay, states), strict=True)),
        {"out": jax.ShapeDtypeStruct(v.shape, v.dtype)}, scratch,
        grid=g.grid, warpgroups=WARPGROUPS, auto_barriers=False, approx_math=True, interpret=interpret,
    )["out"]  # fmt: skip
