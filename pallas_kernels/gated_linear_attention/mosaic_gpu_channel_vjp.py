"""Hopper kernel: gradients of queries, keys and log decays per channel, for all chunks at once.

With H_ij = dY_i.V_j below the diagonal, V_i.dY_j on and above it, S before and dS after the chunk, and the notation of
`hopper/levels.py`,

    dQ, dK = sum over sizes exp(E) * (H_size M) + exp(a) * (dY S^T), exp(a_c - a) * (V dS^T)

A row of H_size M belongs to a query or a key; times that query or key it is the cotangent of E. L^T, a matrix of 0 and
1, maps it to log decays: a sum over the pairs around each token, without cancellation. H_size has the pairs of one
size; a token has no decay with itself.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import PIECE, Geometry, state_row
from pallas_kernels.hopper.levels import (
    CHUNK,
    LEVELS,
    Chunk,
    Decays,
    Near,
    as_operand,
    chunk_scratch,
    half_tile,
    load,
    run_once,
    tile,
)
from pallas_kernels.hopper.rows import Rows
from pallas_kernels.hopper.tiles import WGMMA, launch, read

KEYS, VALUES, STATES = ("q", "k", "decay"), ("v", "dy"), ("states", "dstates")


def gradients(q, k, v, dy, decay, states, dstates, g: Geometry, *, interpret=None):
    """dq, dk in bfloat16 and ddecay in float32, tiles (b, n 64, h k / 64, 64); all arguments are tiles.

    A thread block of one warpgroup processes `PIECE` chunks in turn, 64 channels of the keys. Gradients overwrite their
    inputs. Two blocks of at most 112 KiB fit into a multiprocessor.
    """

    def body(r):
        batch, head, piece, c = (lax.axis_index(x) for x in ("b", "h", "piece", "keys"))
        first = piece * PIECE
        count = jnp.minimum(PIECE, g.n - first)

        def rows(position):
            return pl.ds((first + position) * CHUNK, CHUNK)

        def halves(tile):
            return [(*tile, pl.ds(half * CHUNK // 2, CHUNK // 2)) for half in range(2)]

        def fetch(position, zero=0):
            batch, head, c = (lax.axis_index(x) + zero for x in ("b", "h", "keys"))

            def copy(name, slot, at):
                plgpu.copy_gmem_to_smem(getattr(r, name).at[at], getattr(r, f"{name}_s").at[slot], r.full)

            for name, of in zip(KEYS, (g.of_keys, g.of_keys, g.of_decay), strict=True):
                for half, at in enumerate(halves((batch, rows(position), of(head) * g.rows + c))):
                    copy(name, half, at)
            for i in range(g.columns):
                row = state_row(g, batch, head, first + position) + (i * g.rows + c) * CHUNK
                for name, (half, at) in itertools.product(STATES, enumerate(halves((pl.ds(row, CHUNK),)))):
                    copy(name, 2 * i + half, at)
                for name in VALUES:
                    copy(name, i, (batch, rows(position), head * g.columns + i))

        fetch(0)
        rows_ = Rows(r.totals_s, interpret is not None)
        Chunk(r, 0, (), None, interpret).write_indices()

        def step(position, _):
            plgpu.barrier_wait(r.full)
            chunk = Chunk(r, 0, (), None, interpret)
            chunk.turn = position
            chunk_gradients(r, chunk, rows_)
            plgpu.commit_smem()
            zero = chunk.zero()
            for name, like in (("dq", "q"), ("dk", "k"), ("ddecay", "decay")):
                for half, at in enumerate(halves((batch + zero, rows(position), (head + zero) * g.rows + c))):
                    plgpu.copy_smem_to_gmem(getattr(r, f"{like}_s").at[half + zero], getattr(r, name).at[at])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            pl.when(position + 1 < count)(lambda: fetch(position + 1, zero))

        lax.fori_loop(0, count, step, None)
        plgpu.wait_smem_to_gmem(0)

    scratch = {"q_s": half_tile(2), "k_s": half_tile(2), "decay_s": half_tile(2, dtype=jnp.float32)}
    scratch |= {f"{name}_s": tile(g.columns) for name in VALUES}
    scratch |= {f"{name}_s": half_tile(2 * g.columns) for name in STATES}
    scratch |= {"slopes_s": tile(), "weighted_s": half_tile(1), "totals_s": plgpu.SMEM((20, CHUNK // 2), jnp.float32)}
    scratch |= chunk_scratch(1, interpret)
    scratch["full"] = plgpu.Barrier(num_arrivals=6 + 6 * g.columns)
    shape = (*decay.shape[:2], g.h * g.rows, CHUNK)
    out = {"dq": jax.ShapeDtypeStruct(shape, q.dtype), "dk": jax.ShapeDtypeStruct(shape, q.dtype)}
    out["ddecay"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return launch(
        "gated_linear_channel_gradients", body,
        {"q": q, "k": k, "decay": decay, "v": v, "dy": dy, "states": states, "dstates": dstates}, out, scratch,
        grid={"b": g.b, "h": g.h, "piece": -(-g.n // PIECE), "keys": g.rows},
        approx_math=True, interpret=interpret,
    )  # fmt: skip


def chunk_gradients(r, chunk: Chunk, rows: Rows):
    """Writes dq, dk and the gradient of the log decays over q, k and the log decays.

    Processes one half of the channels at a time, to save registers. Pairs within a warp's rows are multiplied in the
    warp; sums over tokens add the contributions of other warps.
    """

    def tiles(name):
        x = getattr(r, f"{name}_s")
        return [x.at[i + chunk.zero()] for i in range(x.shape[0])]

    values, douts = tiles("v"), tiles("dy")
    below = chunk.products(*((x, y.transpose((1, 0))) for x, y in zip(douts, values, strict=True)))
    above = chunk.products(*((x, y.transpose((1, 0))) for x, y in zip(values, douts, strict=True)))
    slopes = jnp.where(chunk.j < chunk.i, below, above).astype(jnp.bfloat16)
    r.slopes_s[...] = slopes
    own = rows.diagonal(slopes)

    def half_gradients(half, _):
        q, k, decay = (getattr(r, f"{name}_s").at[half] for name in KEYS)
        past, after = ([getattr(r, f"{name}_s").at[2 * i + half] for i in range(len(values))] for name in STATES)

        def masks():
            return Near(r.index_s[0, half, 0])

        near = masks()
        decays, same = Decays(rows, read(decay)), own * as_operand(near.i == near.j)

        def once(function, carry):
            return run_once(masks().zero, function, carry)

        def level_gradients(level, own_, other, dq, dk, dlog, _):
            decays.level, decays.own, decays.other, near = level, own_, other, masks()
            x = rows.choose((level,), read(q), read(k)).astype(jnp.float32)
            weighted = (x * own_).astype(jnp.bfloat16)
            if level < 4:
                found = rows.multiply(own * near.pairs(level), weighted)
            else:
                operand = r.weighted_s.at[0]
                plgpu.commit_smem()
                operand[...] = weighted
                plgpu.commit_smem()
                found = chunk.half_products([(rows.across(read(r.slopes_s), level), operand)])
            found = found * own_
            slope = found * x
            dq, dk = rows.add(level, dq, dk, found)
            if level < LEVELS - 1:
                dlog = rows.multiply(near.sums(level), slope.astype(jnp.bfloat16), dlog)
            decays.next()
            return decays.own, decays.other, dq, dk, dlog, slope

        def ends(x, past, until, total, slope, dlog):
            """Adds the state's contribution to the gradient of x, and its cotangents and those of the last level to the
            log decays of the warp's rows; returns the former for other rows."""
            found = chunk.half_products([(read(a), b) for a, b in past]) * until
            through = load(x) * found
            last = through + rows.choose((LEVELS - 1,), *((slope, 0.0) if x is q else (0.0, slope)))
            near = masks()
            mask = as_operand(near.j >= near.i if x is q else near.j < near.i)
            return total + found, through, rows.multiply(mask, last.astype(jnp.bfloat16), dlog)

        none = plgpu.layout_cast(jnp.zeros(q.shape, jnp.float32), WGMMA)
        carry = decays.own, decays.other, rows.multiply(same, read(k)), rows.multiply(same, read(q)), none, none
        for level in range(LEVELS):
            step = functools.partial(level_gradients, level)
            carry = step(*carry) if level == 4 else once(step, carry)  # level 4 is between two calls of `once`
        until, since, dq, dk, dlog, slope = carry
        queries = functools.partial(ends, q, list(zip(douts, past, strict=True)), since)
        dq, later, dlog = once(queries, (dq, slope, dlog))
        q[...], whole_decay = dq.astype(jnp.bfloat16), since * until
        keys = functools.partial(ends, k, list(zip(values, after, strict=True)), until)
        dk, earlier, dlog = once(keys, (dk, slope, dlog))
        k[...] = dk.astype(jnp.bfloat16)
        around = sum(load(x) * load(y) for x, y in zip(past, after, strict=True))
        sums = (x.astype(jnp.bfloat16) for x in (later, earlier, slope, around))
        ones = as_operand(masks().i >= 0)
        beyond, whole = rows.beyond(*(rows.multiply(ones, x) for x in sums), 0)
        decay[...] = dlog + beyond + whole * whole_decay

    lax.fori_loop(0, 2, half_gradients, None)
