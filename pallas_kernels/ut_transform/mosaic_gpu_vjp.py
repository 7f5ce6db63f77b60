"""Gradients of the UT transform on Hopper, chunk by chunk; T = (I + A)^-1 is recomputed.

With X = T^T dmix and Q = A / beta, all (64, 64),

    dA = -strict(X Diag(beta) T^T)          dbeta_i = X_ii + sum_j dA_ij Q_ij
    dQ = Diag(beta) dA                      W_ij = dQ_ij exp(G_i - G_j)
    dK = W K + W^T K - exp(G) dread + exp(G_c - G) dwrite + dkeys

The gradient of the log decay of token t is the sum of P_ij = W_ij k_i . k_j over j < t <= i, of k_i . dread_i over i >=
t, and of k_i . dwrite_i over i < t. The first sum is computed as row i minus column i of P, summed over i >= t; common
terms cancel exactly, as both are products of the same rounded W.

Barriers: see `mosaic_gpu.py`. T and W share a tile; `commit_smem` separates its stores from the wgmma that read it, and
these from the next store.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.levels import CHUNK, load, tile
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, columns_to, products, rows_to
from pallas_kernels.ut_transform.mosaic_gpu import Array, InChunk, arrays_of, by_chunk, like, tokens


def gradients(inputs: dict[str, Array | None], *, sizes, interpret=None):
    """Gradients by name: dx, dbeta (b, h, n 64) float32, and likewise `slopes`, k_i . (W K - W^T K - exp(G) dread)_i,
    and `written`, k_i . (exp(G_c - G) dwrite)_i."""

    def chunk(c: InChunk):
        read, write = (lambda i, name=name: load(c.tile(name, i)) for name in ("dread", "dwrite"))
        stage(c, c.tile("dmix"), read, write)

    outputs = outputs_of(inputs, sizes)
    scratch = {"square_s": tile(1)}
    return by_chunk("gradients", chunk, inputs, outputs, scratch, sizes=sizes, stages=1, interpret=interpret)


def outputs_of(inputs: dict[str, Array | None], sizes) -> dict[str, Array]:
    """Outputs of `gradients`."""
    x = inputs["x"]
    assert x is not None
    outputs = {"dx": like(x)}
    numbers = Array(jax.ShapeDtypeStruct((*sizes[:2], sizes[2] * CHUNK), jnp.float32), 0)
    if inputs.get("beta") is not None:
        outputs["dbeta"] = numbers
    if inputs.get("log2") is not None:
        outputs |= {"slopes": numbers, "written": numbers}
    return outputs


def stage(c: InChunk, dmix, read, write):
    """Stages the outputs of `gradients`. dmix: a tile; read, write: functions of i, tiles dread and dwrite of channels
    64 i to 64 i + 63, float32."""
    _stage_scores(c, dmix)
    if c.from_keys:
        _of_keys(c, read, write)


def _stage_scores(c: InChunk, dmix):
    """Stages dbeta, and dQ, or W in `square_s`."""
    r = c.r
    c.square[...] = c.inverse().astype(jnp.bfloat16)
    plgpu.commit_smem()
    da, own = of_scores(c, dmix)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    if "beta" in c.given:
        r.dbeta_s[...] = own + (da * c.weighted()).sum(1)
        da = da * rows_to(c.per_row("beta"))
    if not c.from_keys:
        r.dx_s[0] = da.astype(r.dx_s.dtype)
        return
    plgpu.commit_smem()
    c.square[...] = (da * c.between()).astype(jnp.bfloat16)
    plgpu.commit_smem()


def of_scores(c: InChunk, dmix):
    """dA and X_ii, with T in `square_s`."""
    transposed = c.square.transpose((1, 0))

    def run(x, found):
        plgpu.wgmma(x, transposed, dmix)
        value = x[...]
        i, j = c.rows_and_columns()
        own = jnp.where(i == j, value, 0.0).sum(1)
        if "beta" in c.given:
            value = value * columns_to(plgpu.load(c.shared("beta"), layout=PER_COLUMN))
        c.mma.registers(found, value.astype(jnp.bfloat16), transposed)
        return jnp.where(i > j, -found[...], 0.0), own

    return pl.run_scoped(run, *[plgpu.ACC((CHUNK, CHUNK), jnp.float32)] * 2)


def _of_keys(c: InChunk, read_of, write_of):
    """Stages dK, and the sums of the gradient of log decays. `commit_smem` keeps the loads of one step out of the one
    before: registers would not do."""
    r, decays = c.r, "log2" in c.given

    def tile_of_keys(i, sums):
        slopes, written = sums
        keys = c.tile("x", i)
        dk = 0.0
        for sign, square in ((-1, c.square.transpose((1, 0))), (1, c.square)):
            found = products((square, keys))
            dk += found
            if decays:
                slopes += sign * (found * load(keys)).sum(1)
            plgpu.commit_smem()
        read = read_of(i)
        if decays:
            read = read * rows_to(c.borders()[0])
            slopes -= (read * load(keys)).sum(1)
        dk -= read
        plgpu.commit_smem()
        write = write_of(i)
        if decays:
            write = write * rows_to(c.borders()[1])
            written += (write * load(keys)).sum(1)
        dk += write
        if "dkeys" in c.given:
            plgpu.commit_smem()
            dk = dk + load(c.tile("dkeys", i))
        r.dx_s[i] = dk.astype(jnp.bfloat16)
        return slopes, written

    none = plgpu.layout_cast(jnp.zeros((CHUNK,), jnp.float32), PER_ROW)
    slopes, written = lax.fori_loop(0, c.width, tile_of_keys, (none, none))
    if decays:
        r.slopes_s[...], r.written_s[...] = slopes, written


def backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, *, interpret=None):
    """Backward pass (contract in `api.py`)."""
    sizes, inputs = arrays_of(x, beta, log_decay)
    inputs["dmix"] = Array(dmix, 1)
    inputs |= {
        name: None if z is None else tokens(z) for name, z in (("dread", dread), ("dwrite", dwrite), ("dkeys", dkeys))
    }
    found = gradients(inputs, sizes=sizes, interpret=interpret)
    dx, dbeta = found["dx"].reshape(x.shape), None if beta is None else found["dbeta"].swapaxes(1, 2)
    if log_decay is None:
        return dx, dbeta, None
    return dx, dbeta, of_decays(found, inputs["log2"], dkeep.sum(3))


def of_decays(found: dict[str, jax.Array], log2: Array, dkeep):
    """The gradient of the log decays (b, t, h); dkeep (b, n, h): the sum of the cotangents of keep."""
    b, h, t = log2.value.shape

    def by_chunk(z):
        return z.swapaxes(1, 2).reshape(b, -1, CHUNK, h)

    slopes, written, sums = (by_chunk(z) for z in (found["slopes"], found["written"], log2.value))
    whole = jnp.exp2(sums[:, :, -1:]) * dkeep[:, :, None]
    earlier = jnp.pad(written[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
    within = lax.cumsum(slopes, axis=2, reverse=True) + lax.cumsum(earlier, axis=2)
    return (within + whole).reshape(b, t, h)
