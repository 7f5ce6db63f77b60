"""Gradients of the UT transform with decays per channel on Hopper, chunk by chunk.

With the notation of `mosaic_gpu_vjp.py` and `mosaic_gpu_channel.py`, and H = dQ + dQ^T:

    dK = sum over levels exp(E) * (H_level M) - exp(G) * dread + exp(G_c - G) * dwrite + dkeys

A row of each term times the row of K is the cotangent of its E, which L^T maps to log decays, as in
`mosaic_gpu_channel_vjp.py` of gated linear attention: a sum over the pairs around each token, without cancellation.

Barriers: see `mosaic_gpu_channel.py`. Gradients overwrite data that the same warp has loaded.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.levels import CHUNK, LEVELS, Decays, Near, as_operand, half_tile, load, run_once, tile
from pallas_kernels.hopper.tiles import PER_COLUMN, WGMMA, read, rows_to
from pallas_kernels.ut_transform.mosaic_gpu import HALF, Array, InChunk, by_chunk, halves, numbers
from pallas_kernels.ut_transform.mosaic_gpu_channel import inverse, levels, rows_of, scores
from pallas_kernels.ut_transform.mosaic_gpu_vjp import of_scores

SCORES = 2
"""Index of Q among the operands of levels, after their products."""


class Cotangents(NamedTuple):
    """Functions of the half, each called once per half."""

    read: Callable
    """(64, 32) float32."""
    write: Callable
    keep: Callable
    """(32,), by column of a tile."""


def backward(k, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, *, interpret=None):
    """Backward pass (contract in `api.py`)."""
    b, t, h, _ = k.shape
    sizes = b, h, t // CHUNK
    inputs = {"x": halves(k), "beta": numbers(beta), "decay": halves(log_decay), "dmix": Array(dmix, 1)}
    inputs |= {"dread": halves(dread), "dwrite": halves(dwrite), "dkeys": halves(dkeys)}
    inputs["dkeep"] = Array(dkeep.swapaxes(1, 2).reshape(b, h, t), 0)

    def chunk(c: InChunk):
        part, _ = levels(c)
        stage(c, "dmix", scores(c, part), of_shared(c))

    scratch = {"square_s": tile(1)} | scratch_of_levels()
    found = by_chunk(
        "gradients_channel", chunk, inputs, outputs_of(inputs), scratch, sizes=sizes, stages=1, in_place=IN_PLACE,
        interpret=interpret,
    )  # fmt: skip
    return found["dx"], found["dbeta"].swapaxes(1, 2), found["ddecay"]


IN_PLACE = "x", "decay"
"""Inputs that are overwritten by their gradients."""


def outputs_of(inputs: dict[str, Array]) -> dict[str, Array]:
    """Outputs of `by_chunk`: gradients of keys, beta and log decays."""

    def like(x: Array) -> Array:
        return x._replace(value=jax.ShapeDtypeStruct(x.value.shape, x.value.dtype))

    return {"dx": like(inputs["x"]), "ddecay": like(inputs["decay"]), "dbeta": like(inputs["beta"])}


def scratch_of_levels() -> dict:
    """Shared memory of levels and their gradients."""
    return {"levels_s": half_tile(4), "totals_s": plgpu.SMEM((20, HALF), jnp.float32)}


def of_shared(c: InChunk) -> Cotangents:
    """Cotangents from shared memory."""
    read, write = (lambda half, name=name: load(c.shared(name).at[half]) for name in ("dread", "dwrite"))

    def keep(half):
        return plgpu.load(c.shared("dkeep").at[pl.ds(half * HALF, HALF)], layout=PER_COLUMN)

    return Cotangents(read, write, keep)


def stage(c: InChunk, dmix: str, scores, cotangents: Cotangents):
    """Stages the gradients; H overwrites the tile named `dmix`."""
    _stage_slopes(c, dmix, scores)
    lax.fori_loop(0, 2, lambda half, _: _half_gradients(c, half, dmix, cotangents), None)


def _stage_slopes(c: InChunk, name: str, scores):
    """Stages dbeta; writes H over dmix, the tile `name`."""
    r, dmix = c.r, c.tile(name)
    plgpu.commit_smem()
    kept = [r.levels_s.at[SCORES + half + c.index[0]] for half in range(2)]
    for half, place in enumerate(kept):
        place[...] = c.rows.half(scores, half).astype(jnp.bfloat16)
    inverted = inverse(c, scores).astype(jnp.bfloat16)
    plgpu.commit_smem()  # the square may share memory with an operand of the inverse
    c.square[...] = inverted
    plgpu.commit_smem()
    da, own = of_scores(c, dmix)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    r.dbeta_s[...] = own + sum((c.rows.half(da, half) * load(place)).sum(1) for half, place in enumerate(kept))
    dscores = (da * rows_to(c.per_row("beta"))).astype(jnp.bfloat16)
    plgpu.commit_smem()
    dmix[...] = dscores
    c.square.T[...] = dscores
    plgpu.commit_smem()
    dmix[...] = (load(dmix) + load(c.square)).astype(jnp.bfloat16)
    plgpu.commit_smem()


def _half_gradients(c: InChunk, half, slopes: str, cotangents: Cotangents):
    """Overwrites half of the channels with their gradients; slopes: name of the tile of H."""
    r, rows = c.r, rows_of(c)

    def ref(name):
        return c.shared(name).at[half]

    near_rows = rows.diagonal(read(c.tile(slopes)))
    decays = Decays(rows, read(ref("decay")))

    def level_gradients(level, own, other, dk, dlog, _):
        decays.level, decays.own, decays.other, near = level, own, other, Near(c.index[0], hold=True)
        x = load(ref("x"))
        weighted = (x * own).astype(jnp.bfloat16)
        if level < LEVELS - 2:
            found = rows.multiply(near_rows * near.pairs(level), weighted)
        else:
            operand = r.levels_s.at[c.index[0]]
            plgpu.commit_smem()
            operand[...] = weighted
            plgpu.commit_smem()
            found = _half_product(c, rows.across(read(c.tile(slopes)), level), operand)
        found = found * own
        slope = found * x
        if level < LEVELS - 1:
            dlog = rows.multiply(near.sums(level), slope.astype(jnp.bfloat16), dlog)
        decays.next()
        return decays.own, decays.other, dk + found, dlog, slope

    none = plgpu.layout_cast(jnp.zeros((CHUNK, HALF), jnp.float32), WGMMA)
    carry = decays.own, decays.other, none, none, none
    for level in range(LEVELS):
        step = functools.partial(level_gradients, level)
        carry = run_once(c.index[0], step, carry)
    until, since, dk, dlog, slope = carry

    def end(cotangent, factor, sign, dk, dlog):
        """Adds the contribution of read (sign -1) or write; returns its cotangents for other rows."""
        found = sign * cotangent(half) * factor
        through, near = found * load(ref("x")), Near(c.index[0], hold=True)
        last = rows.choose((LEVELS - 1,), *((slope, 0.0) if sign < 0 else (0.0, slope)))
        mask = as_operand(near.j >= near.i if sign < 0 else near.j < near.i)
        return dk + found, rows.multiply(mask, (through + last).astype(jnp.bfloat16), dlog), through

    dk, dlog, later = end(cotangents.read, since, -1, dk, dlog)
    plgpu.commit_smem()
    dk, dlog, earlier = end(cotangents.write, until, 1, dk, dlog)
    plgpu.commit_smem()
    ref("x")[...] = (dk + load(ref("dkeys"))).astype(jnp.bfloat16)
    ones = as_operand(Near(c.index[0], hold=True).i >= 0)
    later, earlier, slope = (rows.multiply(ones, x.astype(jnp.bfloat16)) for x in (later, earlier, slope))
    beyond, _ = rows.beyond(later, earlier, slope, slope, 0)
    whole = lax.broadcast_in_dim(cotangents.keep(half), (CHUNK, HALF), [1]) * (since * until)
    ref("decay")[...] = dlog + beyond + whole
    plgpu.commit_smem()


def _half_product(c: InChunk, x, y):
    """x y, with x in registers and half of the channels of y."""

    def run(acc):
        c.mma.registers(acc, x, y)
        return acc[...]

    return pl.run_scoped(run, plgpu.ACC((CHUNK, HALF), jnp.float32))
