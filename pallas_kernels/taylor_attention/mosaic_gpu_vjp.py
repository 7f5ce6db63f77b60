"""Gradients of Taylor attention on Hopper: two Mosaic GPU kernels that recompute the state, and store none per chunk.

With x_i = scale q_i, s_ij = x_i.k_j, P = 1 + s + s^2/2 (i >= j), den = sum_j P_ij + eps, y = (P v) / den:
  dnum = dy / den,  dden = -(dnum . y),  ds_ij = (dnum_i . v_j + dden_i) (1 + s_ij),
  dx_i = sum_j ds_ij k_j,  dk_j = sum_i ds_ij x_i,  dv_j = sum_i P_ij dnum_i.
Inside a chunk these are taken as written; across chunks through the state S before the chunk and its cotangent dS
after, with J the Jacobian of the features:
  dx += J_q(x)^T (dnum S^T) + dden (z1 + Z2 x),
  dk += J(k)^T (v dS^T) + scale (dz1 + scale dZ2 k),      dv += phi(k) dS,
where dz1 = sum dden_i q_i, dZ2 = sum dden_i q_i q_i^T. Kernel `dq` scans forward in time and recomputes S; kernel
`dkdv` scans backward and carries dS. dnum is never formed: dq divides its rows by den at the end, dkdv divides the
columns of the chunk, and dy in the scan.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.parts import load, operand, transposed
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, columns_to, rows_to
from pallas_kernels.taylor_attention.features import query_coefficients
from pallas_kernels.taylor_attention.mosaic_gpu import (
    ChunkStep,
    PullBack,
    kernel_operands,
    paired_kernel,
    plan_blocks,
    pulled_accumulators,
)
from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    border_states,
    join_values,
    pack_state,
    pad_time,
    split_scale,
    split_values,
    unpack_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_state import Scanned, local_states

SQUARE = plgpu.ACC((CHUNK, CHUNK), jnp.float32)


def _dq_step(chunk: ChunkStep, _, *, normalize, before):
    """dq of a chunk, times `before`, and dden; both are divided by den at the end."""
    flight, decay = chunk.products, chunk.block.decay
    q, k, v, dy = chunk.tiles("q", "k", "v", "dy")
    x, dy_rows = chunk.scaled(load(q)), load(dy)
    dden = None
    if normalize:
        y = load(*chunk.tiles("y"))
        dden = -(dy_rows.astype(jnp.float32) * y.astype(jnp.float32)).sum(axis=1)

    keys = chunk.widths.keys

    def run(scores, products, z, dx, *pulled):
        """Awaits products in order: scores, dy v^T, z, the first two of the state, ds k, the others."""
        flight.tiles(scores, q, transposed(k))
        flight.tiles(products, dy, transposed(v))
        chunk.wait_state()
        chunk.add_z(z, x)
        pull = PullBack(chunk, x, dy_rows, pulled, halved=True)
        later, power = chunk.meets(query_axis=0)
        slope = _slope(flight.load(scores), chunk, later)
        slope = slope if power is None else slope * power
        ds = flight.load(products)
        ds = ds if dden is None else ds + rows_to(dden)
        flight.registers(dx, ds * slope, k)
        past = pull.first()
        if dden is not None:
            past = past + flight.load(z) * rows_to(dden, keys)
        past = pull.rest(past)
        return dx[...] + (past if decay is None else past * rows_to(decay.since_start(PER_ROW), keys))

    narrow = plgpu.ACC((CHUNK, keys), jnp.float32)
    dx = pl.run_scoped(run, SQUARE, SQUARE, narrow, narrow, *pulled_accumulators(chunk.widths))
    factor = np.float32(chunk.scale * before)
    inverse = chunk.stream("inverse", PER_ROW)
    chunk.release()
    results = {"dq": dx * rows_to(inverse * factor, keys)}
    return results | ({} if dden is None else {"dden": dden * inverse}), None


def _dkdv_step(chunk: ChunkStep, _):
    """dk and dv of a chunk; the state is the cotangent of the state after it."""
    decay = chunk.block.decay
    flight = chunk.products
    k, v = chunk.tiles("k", "v")
    x = load(k)

    def aged(y):
        """Decays the contribution of later chunks to row j."""
        if decay is None:
            return y
        until = decay.until_end(chunk.block.is_short(chunk.position), PER_ROW)
        return (y.astype(jnp.float32) * rows_to(until, y.shape[1])).astype(y.dtype)

    def across(dv, z, *pulled):
        """Adds later chunks to dv, returns their dk. Awaits: z, the first two of the state, phi(k) dS, the others."""
        v_rows = load(v)
        chunk.add_z(z, chunk.scaled(x))
        pull = PullBack(chunk, x, v_rows, pulled, halved=False)
        later = pull.first()
        later = later + chunk.scaled(flight.load(z))
        chunk.add_past(dv, x, halved=False, factor=aged)
        return aged(pull.rest(later))

    def run(dv, dk):
        pl.run_scoped(functools.partial(_dkdv_within, chunk, dv, dk), SQUARE, SQUARE)
        chunk.wait_state()
        flight.await_all()
        later = pl.run_scoped(functools.partial(across, dv), narrow, *pulled_accumulators(chunk.widths))
        return dv[...], chunk.scaled(dk[...]) + later

    narrow, wide = (plgpu.ACC((CHUNK, n), jnp.float32) for n in (chunk.widths.keys, chunk.widths.values))
    dv, dk = pl.run_scoped(run, wide, narrow)
    chunk.release()
    return {"dk": dk, "dv": dv}, None


def _dkdv_within(chunk: ChunkStep, dv, dk, scores, products):
    """dv and dk / scale from the queries of the chunk; leaves the products in flight."""
    flight = chunk.products
    q, k, v, dy = chunk.tiles("q", "k", "v", "dy")
    flight.tiles(scores, k, transposed(q))
    flight.tiles(products, v, transposed(dy))
    later, power = chunk.meets(query_axis=1)
    slope = _slope(flight.load(scores), chunk, later)
    inverse, dden = (columns_to(chunk.stream(name, PER_COLUMN)) for name in ("inverse", "dden"))
    half = 0.5 * inverse
    weights = jnp.where(later, half * (slope * slope) + half, 0.0)
    weights = weights if power is None else weights * power
    flight.registers(dv, weights, dy)
    slope = slope if power is None else slope * power
    ds = (flight.load(products) * inverse + dden) * slope
    flight.registers(dk, ds, q)


def _slope(scores, chunk: ChunkStep, later):
    """1 + s; 0 if the query is before the key."""
    return jnp.where(later, 1.0 + chunk.scaled(scores), 0.0)


class Gradients(NamedTuple):
    q: jax.Array
    k: jax.Array
    v: jax.Array
    s: jax.Array  # of the initial state
    z: jax.Array


def backward(
    q, k, v, y, den, borders, dy, dstate=None, *, scale=None, normalize=True, decay=None, segments=None, interpret=None
) -> Gradients:
    """Gradients of `mosaic_gpu.forward`.

    y, den, borders: from its result; dstate: cotangents (s, z) of the last state, or None for zeros; others as given to
    `forward`. Returns float32 gradients of the initial state even if it was None.
    """
    b, t, h, key_dim = q.shape
    value_dim = v.shape[-1]
    inside, before = split_scale(key_dim**-0.5 if scale is None else scale)
    weights = query_coefficients(key_dim, inside).astype(np.float32)[None, None]
    plan = plan_blocks(q, k, v, decay, segments)
    heads, split, log_decay = plan.heads, plan.segments, plan.log_decay
    sizes = heads.widths
    inverse = _along_time(1 / den if normalize else jnp.ones((b, h, t), jnp.float32), heads, split)
    boundary = None
    if dstate is not None:
        boundary = pack_state(dstate[0], dstate[1] / weights, key_dim, sizes, z_once=True)
    q, k, v = kernel_operands(q, k, v, before)
    dy, y = (
        None if x is None else operand(pad_time(split_values(x, sizes.values), t), sizes.parts)
        for x in (dy.astype(sizes.dtype), y)
    )
    options = {"heads": heads, "segments": split, "interpret": interpret}
    streams = {"q": (q, heads.of_query), "k": (k, heads.of_key), "v": (v, heads.of_value), "dy": (dy, heads.of_block)}
    streams |= {"inverse": (inverse, None)}
    out = paired_kernel(
        "taylor_dq",
        functools.partial(_dq_step, normalize=normalize, before=before),
        streams=streams | ({"y": (y, heads.of_block)} if normalize else {}),
        scanned=Scanned("k", "v"),
        start=borders,
        decay=plan.decay,
        scale=inside,
        outputs={"dq": sizes.keys} | ({"dden": None} if normalize else {}),
        last=False,
        reverse=False,
        **options,
    )
    dq, dden = out["dq"], out["dden"] if normalize else jnp.zeros_like(inverse)
    streams |= {"dden": (dden, None)}
    scanned = Scanned("q", "dy", query_scale=inside, u_weight="inverse", z_weight="dden")
    local = local_states(streams, scanned, plan.decay, reverse=True, **options)
    ends = border_states(local, boundary, plan.block_log_decay, segments=split, reverse=True)
    out = paired_kernel(
        "taylor_dkdv",
        _dkdv_step,
        streams=streams,
        scanned=scanned,
        start=ends,
        decay=plan.decay,
        scale=inside,
        outputs={"dk": sizes.keys, "dv": sizes.values},
        last=True,
        reverse=True,
        **options,
    )

    # The count before the first token adds decay^(i+1) count to den_i, and decay^t count to the last count.
    dcount = dden.reshape(b, h, heads.tiles, -1).sum(2)
    if decay is not None:
        tokens = jnp.arange(1, split.padded + 1, dtype=jnp.float32)
        dcount = dcount * jnp.exp(log_decay[None, :, None] * tokens[None, None])
    dcount = dcount.sum(-1)
    if dstate is not None:
        dcount = dcount + dstate[1][..., 0] * (1.0 if decay is None else jnp.exp(t * log_decay)[None])
    ds, dz = unpack_state(out["s"], out["z"], dcount, key_dim, value_dim, sizes, z_sum=True)

    def shared(x, sharing, width):
        """Sums the gradients of the `sharing` consecutive blocks that read one head."""
        x = x[:, :t, :, :width]
        if sharing == 1:
            return x
        return x.astype(jnp.float32).reshape(b, t, -1, sharing, width).sum(3).astype(x.dtype)

    group = heads.query // heads.key
    dv = join_values(out["dv"][:, :t], h, value_dim)
    return Gradients(
        shared(dq, heads.tiles, key_dim),
        shared(out["dk"], heads.tiles * group, key_dim),
        shared(dv, group, value_dim),
        ds,
        dz * weights,
    )


def _along_time(x, heads, segments):
    """(b, h, t) -> (b, blocks, padded t), 0 beyond t."""
    return jnp.repeat(jnp.pad(x, ((0, 0), (0, 0), (0, segments.padded - segments.t))), heads.tiles, axis=1)
