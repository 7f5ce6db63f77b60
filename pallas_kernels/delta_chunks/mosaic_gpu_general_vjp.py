"""The general delta rule on Hopper: gradients of q, k, u, z and decays, chunk by chunk, from the states of both passes.

With D = [dY; dX] and W = [V; X], D W^T has the cotangents of the four products of a chunk. As in the kernel for decays
per channel of gated linear attention, let H_ab be

    D_a W_b^T below the diagonal, and W_a D_b^T on and above it

so row i of H_a1 M_1 + H_a2 M_2, with M_1 of q and k, M_2 of u and z (`mosaic_gpu_general_prepare.py`), is the gradient
of row i of M_a from pairs of one level. Times that row it is the cotangent of its decay. The states add

    dq: exp(G) (dY S^T)      du: exp(G) (dX S^T)      dk: exp(G_c - G) (V U^T)      dz: exp(G_c - G) (X U^T)

u and dX are shifted up by one row, the first to the last place: that row reads no token of the chunk, and the state
without a decay.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

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
from pallas_kernels.hopper.rows import PIECE_ROWS, Rows
from pallas_kernels.hopper.tiles import NARROW, WGMMA, launch, meet, read

PIECE = 8
"""Chunks per thread block."""
WARPGROUPS = 2
"""Each processes half of the channels of the keys."""
HALF = CHUNK // WARPGROUPS
TOKENS = ("q", "k", "u", "z", "decay")
VALUES = ("v", "x", "dy", "dx")
STATES = ("before", "after")
LAST = CHUNK - 1


def gradients(q, k, u, z, log_decay, v, x, dy, dx, before, after, *, interpret=None):
    """`general_xla.gradients` on Hopper. A thread block processes `PIECE` chunks; gradients overwrite inputs."""
    b, t, h, _ = q.shape
    n = t // CHUNK

    def body(r):
        batch, head, piece, warpgroup = (lax.axis_index(name) for name in ("b", "h", "piece", "warpgroup"))
        first = piece * PIECE
        count = jnp.minimum(PIECE, n - first)

        def rows(position):
            return pl.ds((first + position) * CHUNK, CHUNK)

        def channels(half):
            return pl.ds(half * HALF, HALF)

        def fetch(position, zero=0):
            batch, head = (lax.axis_index(name) + zero for name in ("b", "h"))

            def copy(name, slot, *at):
                shared = r.values_s if name in VALUES else getattr(r, f"{name}_s")
                plgpu.copy_gmem_to_smem(getattr(r, name).at[at], shared.at[slot + zero], r.full)

            for half in range(WARPGROUPS):
                for name in TOKENS:
                    copy(name, half, batch, rows(position), head, channels(half))
                for name in STATES:
                    copy(name, half, batch, first + position, head, slice(None), channels(half))
            for i, name in enumerate(VALUES):
                copy(name, i, batch, rows(position), head)

        pl.when(warpgroup == 0)(lambda: fetch(jnp.int32(0)))
        rows_ = Rows(r.totals_s.at[warpgroup], interpret is not None)
        Chunk(r, warpgroup, (), None, interpret).write_indices()

        def step(position, _):
            plgpu.barrier_wait(r.full)
            chunk = Chunk(r, warpgroup, (), None, interpret)
            chunk.turn = position
            _move_up(r, chunk, warpgroup)
            meet(r.met)
            _slopes(r, chunk, rows_, warpgroup)
            meet(r.met)
            _half_gradients(r, chunk, rows_, warpgroup)
            plgpu.commit_smem()
            for name in TOKENS:
                half = warpgroup + chunk.zero()
                at = batch + chunk.zero(), rows(position), head + chunk.zero(), channels(half)
                plgpu.copy_smem_to_gmem(getattr(r, f"{name}_s").at[half], getattr(r, f"d{name}").at[at])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            meet(r.met)
            pl.when((position + 1 < count) & (warpgroup == 0))(lambda: fetch(position + 1, chunk.zero()))

        lax.fori_loop(0, count, step, None)
        plgpu.wait_smem_to_gmem(0)

    operands = {"q": q, "k": k, "u": u, "z": z, "decay": log_decay, "v": v, "x": x, "dy": dy, "dx": dx}
    operands |= {"before": before, "after": after}
    out = {f"d{name}": jax.ShapeDtypeStruct(q.shape, operands[name].dtype) for name in TOKENS}
    scratch: dict[str, Any] = {f"{name}_s": half_tile(2) for name in (*TOKENS[:4], *STATES)}
    scratch |= {"decay_s": half_tile(2, dtype=jnp.float32), "values_s": tile(4), "slopes_s": tile(4)}
    scratch["own_s"] = plgpu.SMEM((4, CHUNK, PIECE_ROWS), jnp.bfloat16, transforms=NARROW)
    scratch |= {"weighted_s": half_tile(2 * WARPGROUPS), "met": plgpu.Barrier(num_arrivals=WARPGROUPS)}
    scratch |= {"totals_s": plgpu.SMEM((WARPGROUPS, 20, 2 * HALF), jnp.float32)}
    scratch["full"] = plgpu.Barrier(num_arrivals=WARPGROUPS * len(TOKENS + STATES) + len(VALUES))
    found = launch(
        "general_delta_gradients", body, operands, out, scratch | chunk_scratch(WARPGROUPS, interpret),
        grid={"b": b, "h": h, "piece": -(-n // PIECE)}, warpgroups=WARPGROUPS, approx_math=True,
        interpret=interpret,
    )  # fmt: skip
    return tuple(found[f"d{name}"] for name in ("q", "k", "u", "z", "decay"))


def _move_up(r, chunk: Chunk, warpgroup):
    """Shifts rows of u (half per warpgroup) and of dX (second warpgroup)."""
    up = as_operand((chunk.j == chunk.i + 1) | (chunk.j == chunk.i - LAST))
    u, dx = r.u_s.at[warpgroup + chunk.zero()], r.values_s.at[3 + chunk.zero()]
    moved = chunk.half_products([(up, u)]).astype(jnp.bfloat16)
    plgpu.commit_smem()
    u[...] = moved

    @pl.when(warpgroup == 1)
    def _():
        moved = chunk.products((up, dx)).astype(jnp.bfloat16)
        plgpu.commit_smem()
        dx[...] = moved

    plgpu.commit_smem()


def _slopes(r, chunk: Chunk, rows: Rows, warpgroup):
    """Writes H_a1 and H_a2 (a: the warpgroup) and their pairs within a warp's rows; ignores the last row of dX."""

    def tile(i):
        return r.values_s.at[i + chunk.zero()]

    values, douts = tile(warpgroup), tile(2 + warpgroup)
    for b in range(2):
        other_values, other_douts = (tile(i).transpose((1, 0)) for i in (b, 2 + b))
        below = chunk.products((douts, other_values))
        below = jnp.where((chunk.i == LAST) & (warpgroup == 1), 0.0, below)
        above = chunk.products((values, other_douts))
        if b == 1:
            above = jnp.where(chunk.j == LAST, 0.0, above)
        found = jnp.where(chunk.j < chunk.i, below, above).astype(jnp.bfloat16)
        r.slopes_s[2 * warpgroup + b + chunk.zero()] = found
        r.own_s[2 * warpgroup + b + chunk.zero()] = rows.diagonal(found)
    plgpu.commit_smem()


def _half_gradients(r, chunk: Chunk, rows: Rows, half):
    """Overwrites half of the channels with their gradients.

    Pairs within a warp's rows are multiplied in the warp; sums over tokens add the contributions of other warps.
    """
    slopes, weighted, values = (lambda i, x=x: x.at[i + chunk.zero()] for x in (r.slopes_s, r.weighted_s, r.values_s))
    q, k, u, z, decay = (getattr(r, f"{name}_s").at[half + chunk.zero()] for name in TOKENS)
    pairs_of_rows = (q, k), (u, z)

    def masks():
        return Near(chunk.zero())

    near = masks()
    decays = Decays(rows, read(decay), HALF)

    def own(i):
        return read(r.own_s.at[i + chunk.zero()])

    same = [own(i) * as_operand(near.i == near.j) for i in range(4)]

    def once(function, carry):
        return run_once(masks().zero, function, carry)

    def weigh(level, a):
        """Rows of M_a without and with decays."""
        query, key = pairs_of_rows[a]
        x = rows.choose((level,), read(query), read(key)).astype(jnp.float32)
        return x, (x * decays.own).astype(jnp.bfloat16)

    def level_gradients(level, a, own_, x_found, y_found, dlog, slope):
        """Adds the gradients of M_a from pairs of a level to its inputs', and their cotangents to the slopes."""
        decays.own, near = own_, masks()
        if level < LEVELS - 2:
            mask = near.pairs(level)
            new = rows.multiply(own(2 * a) * mask, weigh(level, 0)[1])
            new = rows.multiply(own(2 * a + 1) * mask, weigh(level, 1)[1], new)
        else:
            operands = [rows.across(read(slopes(2 * a + i)), level) for i in range(2)]
            new = chunk.half_products([(x, weighted(2 * half + i)) for i, x in enumerate(operands)])
        new = new * own_
        new_slope = new * weigh(level, a)[0]
        if level < LEVELS - 1:
            dlog = rows.multiply(near.sums(level), new_slope.astype(jnp.bfloat16), dlog)
        else:
            slope = slope + new_slope
        return own_, *rows.add(level, x_found, y_found, new), dlog, slope

    def go_on(level, own_, other):
        """Decays of the next level."""
        decays.level, decays.own, decays.other = level, own_, other
        decays.next()
        return decays.own, decays.other

    def weigh_all(level):
        """Writes M_1 and M_2 for products of all warps."""
        plgpu.commit_smem()
        for a in range(2):
            weighted(2 * half + a)[...] = weigh(level, a)[1]
        plgpu.commit_smem()

    def end(x, state, value, factor, found, through):
        """Writes the gradient of an input, including the state; adds the state's cotangent to `through`."""
        new = chunk.half_products([(read(values(value)), state)]) * factor
        seen = jnp.where(masks().row_of(HALF) == LAST, 0.0, new) if x is u else new
        through = through + load(x) * seen
        x[...] = (found + new).astype(jnp.bfloat16)
        return factor, found, through

    def ends(state, inputs, values, factors, found):
        """Writes both gradients with contributions of a state; returns cotangents of their decays for other rows."""
        through = none
        for each in zip(inputs, values, factors, found, strict=True):
            step = functools.partial(end, each[0], state, each[1])
            through = once(step, (*each[2:], through))[2]
        return through

    def own_rows(through, last, dlog, *, queries):
        """Adds cotangents of a state and of the last level to the log decays of the warp's rows."""
        near = masks()
        mask = as_operand(near.j >= near.i if queries else near.j < near.i)
        return rows.multiply(mask, (through + last).astype(jnp.bfloat16), dlog)

    none = plgpu.layout_cast(jnp.zeros(q.shape, jnp.float32), WGMMA)
    first = (
        rows.multiply(same[2], read(z), rows.multiply(same[0], read(k))),
        rows.multiply(same[1], read(u), rows.multiply(same[0], read(q))),
        rows.multiply(same[3], read(z), rows.multiply(same[1], read(k))),
        rows.multiply(same[3], read(u), rows.multiply(same[2], read(q))),
    )
    found, dlog, slope = list(first), none, none
    for level in range(LEVELS):
        if level >= LEVELS - 2:
            weigh_all(level)
        for a in range(2):
            step, both = functools.partial(level_gradients, level, a), slice(2 * a, 2 * a + 2)
            if level < LEVELS - 1:

                def short(*carry, step=step):
                    return step(*carry, none)[:4]

                decays.own, *found[both], dlog = once(short, (decays.own, *found[both], dlog))
            else:
                decays.own, *found[both], dlog, slope = once(step, (decays.own, *found[both], dlog, slope))
        decays.own, decays.other = once(functools.partial(go_on, level), (decays.own, decays.other))
    until, since, (dq, dk, du, dz) = decays.own, decays.other, found
    before, after = (getattr(r, f"{name}_s").at[half + chunk.zero()] for name in STATES)
    unread = jnp.where(masks().row_of(HALF) == LAST, 1.0, since)
    later = ends(before, (q, u), (2, 3), (since, unread), (dq, du))
    dlog = own_rows(later, rows.choose((LEVELS - 1,), slope, 0.0), dlog, queries=True)
    whole_decay = since * until
    earlier = ends(after, (k, z), (0, 1), (until, until), (dk, dz))
    dlog = own_rows(earlier, rows.choose((LEVELS - 1,), 0.0, slope), dlog, queries=False)
    around = load(before) * load(after)
    sums = (x.astype(jnp.bfloat16) for x in (later, earlier, slope, around))
    ones = as_operand(masks().i >= 0)
    later, earlier, slope, around = (rows.multiply(ones, x) for x in sums)
    beyond, whole = rows.beyond(later, earlier, slope, around, 0)
    decay[...] = dlog + beyond + whole * whole_decay
    plgpu.commit_smem()
    down = as_operand((chunk.i == chunk.j + 1) | (chunk.i == chunk.j - LAST))
    moved = chunk.half_products([(down, u)]).astype(jnp.bfloat16)
    plgpu.commit_smem()
    u[...] = moved
