"""The UT transform with decays per channel of the keys, of 64 channels, on Hopper: every chunk by itself.

    Q_ij = sum_k K_ik K_jk exp(G_ik - G_jk), j < i          A = Diag(beta) Q

No exponent is positive: the levels of `mosaic_gpu_levels.py` of gated linear attention, whose queries and keys are both
K here, so that a level is M M^T with M = exp(E) * K. Gradients, with names of `mosaic_gpu_vjp.py` and H = dQ + dQ^T:

    dK = sum over levels exp(E) * (H_level M) - exp(G) * dread + exp(G_c - G) * dwrite + dkeys

A row of each of these terms times that of K is the cotangent of its E, whose log decays are a sum of L^T, as in
`mosaic_gpu_channel_vjp.py` there: over the pairs around each token, so that nothing cancels.

Channels are in two halves, as registers hold. Barriers: `commit_smem` is between the stores of each tile and the wgmma
that read it, and between these and the next stores to it. Sums of log decays of 16 rows pass through `totals_s`; a
`commit_smem` ends each half, whose readers are done then. Gradients are stored over what the same warp has loaded.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_levels import (
    CHUNK,
    LEVELS,
    Decays,
    as_operand,
    half_tile,
    load,
    tile,
)
from pallas_kernels.gated_linear_attention.mosaic_gpu_rows import PIECE_ROWS, Rows
from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, WGMMA, columns_to, rows_to
from pallas_kernels.ut_transform import mosaic_gpu_inverse
from pallas_kernels.ut_transform.mosaic_gpu import HALF, Array, InChunk, by_chunk, halves, numbers
from pallas_kernels.ut_transform.mosaic_gpu_vjp import of_scores

KEEP_ROWS = 8
"""Copies of `keep` that are written: rows of a tile."""
SCORES = 2
"""Place of Q among the operands of levels, when these have been multiplied."""


def forward(k, beta, log_decay, *, interpret=None):
    """As `backends.py` says, of log_decay (b, t, h, 64)."""
    b, t, h, _ = k.shape
    sizes = b, h, t // CHUNK

    def chunk(c: InChunk):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        mix = _inverse(c, _weighted(c, borders=True))
        c.r.mix_s[0] = (mix * columns_to(plgpu.load(c.shared("beta"), layout=PER_COLUMN))).astype(jnp.bfloat16)

    like = lambda *shape, dtype=k.dtype: jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731
    outputs = {"mix": Array(like(b, sizes[2], h, CHUNK, CHUNK), 1)}
    outputs |= {name: halves(like(*k.shape)) for name in ("read", "write")}
    outputs["keep"] = halves(like(b, sizes[2], h, KEEP_ROWS, CHUNK, dtype=jnp.float32))
    inputs = {"x": halves(k), "beta": numbers(beta), "decay": halves(log_decay)}
    scratch = {"levels_s": half_tile(4), "totals_s": plgpu.SMEM((4, HALF), jnp.float32)}
    found = by_chunk("forward_channel", chunk, inputs, outputs, scratch, sizes=sizes, stages=1, interpret=interpret)
    return found["mix"], found["read"], found["write"], found["keep"][:, :, :, 0]


def backward(k, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, *, interpret=None):
    """As `backends.py` says."""
    b, t, h, _ = k.shape
    sizes = b, h, t // CHUNK
    inputs = {"x": halves(k), "beta": numbers(beta), "decay": halves(log_decay), "dmix": Array(dmix, 1)}
    inputs |= {"dread": halves(dread), "dwrite": halves(dwrite), "dkeys": halves(dkeys)}
    inputs["dkeep"] = Array(dkeep.swapaxes(1, 2).reshape(b, h, t), 0)

    def chunk(c: InChunk):
        _stage_slopes(c)
        lax.fori_loop(0, 2, lambda half, _: _half_gradients(c, half), None)

    outputs = {"dx": halves(k), "ddecay": halves(log_decay), "dbeta": numbers(beta)}
    outputs = {
        name: array._replace(value=jax.ShapeDtypeStruct(array.value.shape, array.value.dtype))
        for name, array in outputs.items()
    }
    scratch = {"levels_s": half_tile(4), "square_s": tile(1)}
    scratch["totals_s"] = plgpu.SMEM((20, HALF), jnp.float32)
    found = by_chunk(
        "gradients_channel", chunk, inputs, outputs, scratch, sizes=sizes, stages=1, in_place=("x", "decay"),
        interpret=interpret,
    )  # fmt: skip
    return found["dx"], found["dbeta"].swapaxes(1, 2), found["ddecay"]


def _inverse(c: InChunk, scores):
    """(I + A)^-1 of Q."""
    a = scores * rows_to(c.per_row("beta"))
    return mosaic_gpu_inverse.inverse(c.r, c.rows, c.mma, a, c.index[0])


def _once(c: InChunk, function, carry):
    """function(*carry), in a loop of one trip, which the compiler does not know: it would mix it with what follows, and
    hold more in registers."""
    return lax.fori_loop(0, 1 + c.index[0], lambda _, carry: function(*carry), carry)


def _rows(c: InChunk) -> Rows:
    return Rows(c.r.totals_s, c.rows.interpreted)


def _weighted(c: InChunk, *, borders: bool):
    """Q (64, 64) float32. borders: stages read, write and keep."""
    r, rows = c.r, _rows(c)

    def half_levels(half, part):
        keys, decay = c.shared("x").at[half], c.shared("decay").at[half]
        decays = Decays(rows, plgpu.load(decay, layout=WGMMA))

        def weigh(level, own, other, part):
            decays.level, decays.own, decays.other = level, own, other
            x = (load(keys) * own).astype(jnp.bfloat16)
            if level < LEVELS - 2:
                near = _Near(c.index[0])
                mask = (near.apart >= 1 << level) & (near.apart < 2 << level) & (near.j < near.i)
                part = part + jnp.where(mask, rows.within(x, x), 0.0)
            else:
                r.levels_s[2 * (level - LEVELS + 2) + half] = x
            decays.next()
            return decays.own, decays.other, part

        carry = decays.own, decays.other, part
        for level in range(LEVELS):
            carry = _once(c, functools.partial(weigh, level), carry)
        until, since, part = carry
        if borders:
            r.keep_s[half] = until * since
            r.read_s[half] = (-load(keys) * since).astype(jnp.bfloat16)
            r.write_s[half] = (load(keys) * until).astype(jnp.bfloat16)
        plgpu.commit_smem()
        return part

    none = plgpu.layout_cast(jnp.zeros((CHUNK, PIECE_ROWS), jnp.float32), WGMMA)
    part = lax.fori_loop(0, 2, half_levels, none)

    def run(*accs):
        for level, acc in enumerate(accs):
            for half in range(2):
                x = r.levels_s.at[2 * level + half]
                plgpu.wgmma(acc, x, x.transpose((1, 0)))
        return tuple(acc[...] for acc in accs)

    near, far = pl.run_scoped(run, *[plgpu.ACC((CHUNK, CHUNK), jnp.float32)] * 2)
    return rows.join(part, near, far, upper=False)


def _stage_slopes(c: InChunk):
    """Stages dbeta; writes H in place of dmix."""
    r, dmix = c.r, c.tile("dmix")
    scores = _weighted(c, borders=False)
    plgpu.commit_smem()
    kept = [r.levels_s.at[SCORES + half + c.index[0]] for half in range(2)]
    for half, place in enumerate(kept):
        place[...] = c.rows.half(scores, half).astype(jnp.bfloat16)
    c.square[...] = _inverse(c, scores).astype(jnp.bfloat16)
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


def _half_gradients(c: InChunk, half):
    """Writes the gradients of half of the channels in the place of what they are gradients of."""
    r, rows = c.r, _rows(c)
    ref = lambda name: c.shared(name).at[half]  # noqa: E731
    read = lambda x: plgpu.load(x, layout=WGMMA)  # noqa: E731
    near_rows = rows.diagonal(read(c.tile("dmix")))
    decays = Decays(rows, read(ref("decay")))

    def level_gradients(level, own, other, dk, dlog, _):
        decays.level, decays.own, decays.other, near = level, own, other, _Near(c.index[0])
        x = load(ref("x"))
        weighted = (x * own).astype(jnp.bfloat16)
        if level < LEVELS - 2:
            pairs = as_operand((near.apart >= 1 << level) & (near.apart < 2 << level))
            found = rows.multiply(near_rows * pairs, weighted)
        else:
            operand = r.levels_s.at[c.index[0]]
            plgpu.commit_smem()
            operand[...] = weighted
            plgpu.commit_smem()
            found = _half_product(c, rows.across(read(c.tile("dmix")), level), operand)
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
        carry = _once(c, step, carry)
    until, since, dk, dlog, slope = carry

    def end(cotangent, factor, sign, dk, dlog):
        """Adds what passes through read (sign -1) or write, whose cotangents are also returned for other rows."""
        found = sign * load(ref(cotangent)) * factor
        through, near = found * load(ref("x")), _Near(c.index[0])
        last = rows.choose((LEVELS - 1,), *((slope, 0.0) if sign < 0 else (0.0, slope)))
        mask = as_operand(near.j >= near.i if sign < 0 else near.j < near.i)
        return dk + found, rows.multiply(mask, (through + last).astype(jnp.bfloat16), dlog), through

    dk, dlog, later = end("dread", since, -1, dk, dlog)
    plgpu.commit_smem()
    dk, dlog, earlier = end("dwrite", until, 1, dk, dlog)
    plgpu.commit_smem()
    ref("x")[...] = (dk + load(ref("dkeys"))).astype(jnp.bfloat16)
    ones = as_operand(_Near(c.index[0]).i >= 0)
    later, earlier, slope = (rows.multiply(ones, x.astype(jnp.bfloat16)) for x in (later, earlier, slope))
    beyond, _ = rows.beyond(later, earlier, slope, slope, 0)
    dkeep = plgpu.load(c.shared("dkeep").at[pl.ds(half * HALF, HALF)], layout=PER_COLUMN)
    whole = lax.broadcast_in_dim(dkeep, (CHUNK, HALF), [1]) * (since * until)
    ref("decay")[...] = dlog + beyond + whole
    plgpu.commit_smem()


def _half_product(c: InChunk, x, y):
    """x y, x in registers, y half of the channels."""

    def run(acc):
        c.mma.registers(acc, x, y)
        return acc[...]

    return pl.run_scoped(run, plgpu.ACC((CHUNK, HALF), jnp.float32))


class _Near:
    """Rows and columns of (64, 16) pairs of a warp's rows. zero: 0 of shared memory, without which the compiler would
    compute masks before the loop, and hold registers."""

    def __init__(self, zero):
        iota = lambda axis: plgpu.broadcasted_iota(jnp.int32, (CHUNK, PIECE_ROWS), axis, layout=WGMMA)  # noqa: E731
        self.row, self.j = iota(0), iota(1) + zero
        self.i = self.row & (PIECE_ROWS - 1)
        self.apart = self.i ^ self.j

    def sums(self, level: int):
        """The transpose of L: whose log decays a slope of the level belongs to."""
        query = ((self.row & ~(PIECE_ROWS - 1) | self.j) >> level & 1) != 0
        return as_operand((self.apart < 1 << level) & ((self.i <= self.j) == query))
