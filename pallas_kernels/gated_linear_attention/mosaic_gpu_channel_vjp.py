"""Hopper kernel: gradients of queries, keys and log decays per channel, all chunks at once.

With H_ij = dY_i.V_j below the diagonal, V_i.dY_j on and above it, S before and dS after the chunk, and the names of
`mosaic_gpu_levels.py`,

    dQ, dK = sum over sizes exp(E) * (H_size M) + exp(a) * (dY S^T), exp(a_c - a) * (V dS^T)

a row of H_size M being that of a query or of a key; times that query or key it is the cotangent of E, whose log decays
L^T finds. H_size holds the pairs of one size; a token and itself have no decay.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import PIECE, Geometry, state_row
from pallas_kernels.gated_linear_attention.mosaic_gpu_levels import (
    CHUNK,
    LEVELS,
    Chunk,
    as_operand,
    float_tile,
    level_scratch,
    load,
    tile,
)
from pallas_kernels.mosaic_gpu_tiles import WGMMA, launch

KEYS, VALUES, STATES = ("q", "k", "decay"), ("v", "dy"), ("states", "dstates")


def gradients(q, k, v, dy, decay, states, dstates, g: Geometry, *, interpret=None):
    """dq, dk in bfloat16 and ddecay in float32, tiles (b, n 64, h k / 64, 64); all arguments are tiles.

    One warpgroup of a thread block takes `PIECE` chunks in turn, 64 channels of the keys. Log decays take the place of
    states, H that of v and operands of products that of dy when they have been read, results that of what they are
    gradients of.
    """

    def body(r):
        batch, head, piece, c = (lax.axis_index(x) for x in ("b", "h", "piece", "keys"))
        first = piece * PIECE
        count = jnp.minimum(PIECE, g.n - first)
        rows = lambda position: pl.ds((first + position) * CHUNK, CHUNK)  # noqa: E731

        def fetch(position):
            for name, at in zip(KEYS, (g.of_keys(head), g.of_keys(head), g.of_decay(head)), strict=True):
                source = getattr(r, name).at[batch, rows(position), at * g.rows + c]
                plgpu.copy_gmem_to_smem(source, getattr(r, f"{name}_s").at[0], r.full)
            for i in range(g.columns):
                row = state_row(g, batch, head, first + position) + (i * g.rows + c) * CHUNK
                for name in STATES:
                    plgpu.copy_gmem_to_smem(
                        getattr(r, name).at[pl.ds(row, CHUNK)], getattr(r, f"{name}_s").at[i], r.full
                    )
                for name in VALUES:
                    source = getattr(r, name).at[batch, rows(position), head * g.columns + i]
                    plgpu.copy_gmem_to_smem(source, getattr(r, f"{name}_s").at[i], r.full)

        fetch(0)
        constants = Chunk(r, 0, (), None, interpret)
        constants.write_indices()
        constants.write_levels()
        ones = plgpu.layout_cast(jnp.ones((CHUNK, CHUNK), jnp.bfloat16), WGMMA)

        def step(position, _):
            plgpu.barrier_wait(r.full)

            def tiles(*names):
                """Of arrays, at a zero that the compiler does not know: it would compute descriptors and addresses long
                before their use, and hold 60 registers until then."""
                zero = r.index_s[0, lax.rem(position, jnp.int32(2)), 0]
                arrays = (getattr(r, f"{name}_s") for name in names)
                return tuple([x.at[i + zero] for i in range(x.shape[0])] for x in arrays)

            states, dstates, values, douts, (decay,) = tiles(*STATES, *VALUES, "decay")
            chunk = Chunk(r, 0, (states[0], dstates[0]), douts[0], interpret)
            chunk.turn = position

            def pull(sums, mask, x):
                """`sums` with mask x added to the first. The others pass through, so that they are added up here: ptxas
                would keep their summands in registers instead."""
                chunk.store(x)
                return chunk.mma.update(sums, lambda acc, *_: chunk.add(acc, (mask, chunk.operand)))

            below = chunk.products(*((x, y.transpose((1, 0))) for x, y in zip(douts, values, strict=True)))
            above = chunk.products(*((x, y.transpose((1, 0))) for x, y in zip(values, douts, strict=True)))
            slope = jnp.where(chunk.j < chunk.i, below, above).astype(jnp.bfloat16)
            around = sum(load(x) * load(y) for x, y in zip(states, dstates, strict=True)).astype(jnp.bfloat16)
            dq = chunk.products(*zip(douts, states, strict=True))
            dk = chunk.products(*zip(values, dstates, strict=True))
            chunk.store(around)
            values[0][...] = slope
            chunk.split(decay)
            dlog = chunk.product(ones, chunk.operand) * chunk.factor(ones)
            states, dstates, (slopes, *_), douts, (q,), (k,), (decay,) = tiles(*STATES, *VALUES, *KEYS)
            chunk.parts, chunk.operand = (states[0], dstates[0]), douts[0]
            dk = dk * chunk.until()
            dlog, dq, dk = pull((dlog, dq, dk), as_operand(chunk.j < chunk.i), load(k) * dk)
            dq = dq * chunk.since()
            sums = pull((dlog, dq, dk), as_operand(chunk.j >= chunk.i), load(q) * dq)
            same = plgpu.load(slopes, layout=WGMMA) * as_operand(chunk.i == chunk.j)

            def add_same(dlog, dq, dk):
                del dlog
                chunk.add(dq, (same, k))
                chunk.add(dk, (same, q))

            sums = chunk.mma.update(sums, add_same)

            def add(level, sums):
                dlog, dq, dk = sums
                x, factor = chunk.level(level, q, k)
                chunk.store(x * factor)
                found = chunk.product(plgpu.load(slopes, layout=WGMMA) * chunk.pairs(level), chunk.operand)
                slope, found = found * load(chunk.operand), found * factor
                dq, dk = dq + found * chunk.rows(level, second=True), dk + found * chunk.rows(level, second=False)
                return pull((dlog, dq, dk), chunk.sums_within(level, transposed=True), slope)

            dlog, dq, dk = lax.fori_loop(1, LEVELS, add, add(0, sums))
            q[...], k[...], decay[...] = dq.astype(jnp.bfloat16), dk.astype(jnp.bfloat16), dlog
            plgpu.commit_smem()
            for name, x in (("dq", q), ("dk", k), ("ddecay", decay)):
                plgpu.copy_smem_to_gmem(x, getattr(r, name).at[batch, rows(position), head * g.rows + c])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            pl.when(position + 1 < count)(lambda: fetch(position + 1))

        lax.fori_loop(0, count, step, None)
        plgpu.wait_smem_to_gmem(0)

    scratch = {"q_s": tile(1), "k_s": tile(1), "decay_s": float_tile(1)}
    scratch |= {f"{name}_s": tile(g.columns) for name in (*VALUES, *STATES)}
    # Two blocks of at most 113 KiB fit into a multiprocessor.
    scratch |= level_scratch(1, interpret, levels=g.columns == 1)
    scratch["full"] = plgpu.Barrier(num_arrivals=3 + 4 * g.columns)
    shape = (*decay.shape[:2], g.h * g.rows, CHUNK)
    out = {"dq": jax.ShapeDtypeStruct(shape, q.dtype), "dk": jax.ShapeDtypeStruct(shape, q.dtype)}
    out["ddecay"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return launch(
        "gated_linear_channel_gradients", body,
        {"q": q, "k": k, "decay": decay, "v": v, "dy": dy, "states": states, "dstates": dstates}, out, scratch,
        grid={"b": g.b, "h": g.h, "piece": -(-g.n // PIECE), "keys": g.rows}, warpgroups=1,
        auto_barriers=False, approx_math=True, interpret=interpret,
    )  # fmt: skip
