"""Gradients of Taylor attention on Hopper: two Mosaic GPU kernels that recompute the state, and store none per chunk.

With s_ij = scale q_i.k_j, P = 1 + s + s^2/2 (i >= j), den = sum_j P_ij + eps, y = (P v) / den:
  dnum = dy / den,  dden = -(dnum . y),  ds_ij = (dnum_i . v_j + dden_i) (1 + s_ij),
  dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i,  dv_j = sum_i P_ij dnum_i.
Inside a chunk these are taken as written; across chunks through the state S before the chunk and its
cotangent dS after:
  U = dnum S^T,   dq += (U * B_q) A^T + (U * A_q) B^T + scale dden (z1 + scale Z2 q),
  W = v dS^T,     dk += (W * B_k) A^T + (W * A_k) B^T + scale (dz1 + scale dZ2 k),      dv += phi(k) dS,
where phi(x) = A_x * B_x are the factors of `mosaic_gpu_layout`, and dz1 = sum dden_i q_i, dZ2 = sum dden_i q_i
q_i^T. Kernel `dq` scans forward in time and recomputes S; kernel `dkdv` scans backward and carries dS. Each
block starts from the state of its segment, and nothing is stored per chunk.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, WGMMA, columns_to, iota, rows_to
from pallas_kernels.taylor_attention.features import query_coefficients
from pallas_kernels.taylor_attention.mosaic_gpu import kernel_operands, plan_blocks
from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    GROUPS,
    KEY_DIM,
    VALUE_DIM,
    border_states,
    join_values,
    pack_state,
    pad_time,
    split_scale,
    split_values,
    unpack_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_pair import ChunkStep, paired_kernel
from pallas_kernels.taylor_attention.mosaic_gpu_segments import local_states
from pallas_kernels.taylor_attention.mosaic_gpu_state import Scanned


def _dq_step(chunk: ChunkStep, _, *, before):
    """dq of a chunk, times `before`."""
    mma, decay, refs = chunk.mma, chunk.block.decay, chunk.refs
    q, k, v, dnum, dden = chunk.streams("q", "k", "v", "dnum", "dden")
    s = chunk.scaled(mma.product(q, k.transpose((1, 0))))
    i, j = iota((64, 64), 0), iota((64, 64), 1)
    slope = jnp.where(i >= j, 1.0 + s, 0.0)
    if decay is not None:
        slope = slope * decay.between(i, j)
    dden = plgpu.load(dden, layout=PER_ROW)
    ds = ((mma.product(dnum, v.transpose((1, 0))) + rows_to(dden)) * slope).astype(jnp.bfloat16)
    within = chunk.scaled(mma.of_registers(ds, k))
    chunk.wait_state()
    past = chunk.scaled(chunk.read_z(chunk.scaled(plgpu.load(q, layout=WGMMA)))) * rows_to(dden, KEY_DIM)

    def from_state(acc):
        for g in range(GROUPS):
            left, right = chunk.factors(g, q, refs.first_q_s)
            u = mma.product(dnum, chunk.state(g))
            mma.registers(acc, (u * right).astype(jnp.bfloat16), refs.first_q_s.at[g].transpose((1, 0)))
            mma.registers(acc, (u * left).astype(jnp.bfloat16), refs.second_s.at[g].transpose((1, 0)))
        return acc[...]

    past = past + pl.run_scoped(from_state, plgpu.ACC((64, KEY_DIM), jnp.float32))
    chunk.release()
    if decay is not None:
        past = past * rows_to(decay.since_start(PER_ROW), KEY_DIM)
    return {"dq": (within + past) * np.float32(before)}, None


def _dkdv_step(chunk: ChunkStep, _):
    """dk and dv of a chunk; the state is the cotangent after it."""
    mma, decay, refs = chunk.mma, chunk.block.decay, chunk.refs
    q, k, v, dnum, dden = chunk.streams("q", "k", "v", "dnum", "dden")
    s = chunk.scaled(mma.product(k, q.transpose((1, 0))))
    j, i = iota((64, 64), 0), iota((64, 64), 1)
    slope = jnp.where(i >= j, 1.0 + s, 0.0)
    weights = 0.5 + 0.5 * (slope * slope)
    if decay is None:
        weights = jnp.where(i >= j, weights, 0.0)
    else:
        power = jnp.where(i >= j, decay.between(i, j), 0.0)
        weights, slope = weights * power, slope * power
    weights = weights.astype(jnp.bfloat16)
    dden = columns_to(plgpu.load(dden, layout=PER_COLUMN))
    ds = (mma.product(v, dnum.transpose((1, 0))) + dden) * chunk.scaled(slope)
    ds = ds.astype(jnp.bfloat16)
    until = None if decay is None else decay.until_end(chunk.block.is_short(chunk.position), PER_ROW)

    def aged(x):
        """Decays what the later chunks add to row j."""
        return x if until is None else x * rows_to(until, x.shape[1])

    chunk.wait_state()

    def from_queries(dv, dk):
        mma.registers(dv, weights, dnum)
        mma.registers(dk, ds, q)
        for g in range(GROUPS):
            left, right = chunk.factors(g, k, refs.first_s)
            right = aged(right)
            mma.registers(dv, (left * right).astype(jnp.bfloat16), chunk.state(g).transpose((1, 0)))
            w = mma.product(v, chunk.state(g))
            mma.registers(dk, (w * right).astype(jnp.bfloat16), refs.first_s.at[g].transpose((1, 0)))
            w = aged(w)
            mma.registers(dk, (w * left).astype(jnp.bfloat16), refs.second_s.at[g].transpose((1, 0)))
        return dv[...], dk[...]

    dv, dk = pl.run_scoped(from_queries, plgpu.ACC((64, VALUE_DIM), jnp.float32), plgpu.ACC((64, KEY_DIM), jnp.float32))
    dk = dk + aged(chunk.scaled(chunk.read_z(chunk.scaled(plgpu.load(k, layout=WGMMA)))))
    chunk.release()
    return {"dk": dk, "dv": dv}, None


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

    Args:
      q, k, v: as given to `forward`.
      y, den, borders: from its result.
      dy: cotangent of y, (b, t, h, v).
      dstate: cotangents (s, z) of the last state, or None for zeros.
      scale, normalize, decay, segments: as given to `forward`; the same segments.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.

    Returns gradients in the shapes and dtypes of q, k, v, and float32 ones of the initial state (also where
    it was None).
    """
    b, t, h, key_dim = q.shape
    value_dim = v.shape[-1]
    inside, before = split_scale(key_dim**-0.5 if scale is None else scale)
    weights = query_coefficients(key_dim, inside).astype(np.float32)[None, None]
    plan = plan_blocks(q, k, v, decay, segments)
    heads, split, log_decay = plan.heads, plan.segments, plan.log_decay
    dnum = dy.astype(jnp.float32) / den[..., None] if normalize else dy
    dnum = split_values(dnum.astype(jnp.bfloat16))
    if normalize:
        # From the rounded dnum, so that dnum.v + dden = dnum.(v - y) cancels as it should.
        dden = -(dnum.astype(jnp.float32) * split_values(y).astype(jnp.float32)).sum(-1)
    else:
        dden = jnp.zeros((b, t, heads.blocks), jnp.float32)
    dden = jnp.pad(jnp.swapaxes(dden, 1, 2), ((0, 0), (0, 0), (0, split.padded - t)))
    boundary = None
    if dstate is not None:
        boundary = pack_state(dstate[0], dstate[1] / weights, key_dim, z_once=True)
    q, k, v = kernel_operands(q, k, v, before)
    dnum = pad_time(dnum, t)
    options = {"scale": inside, "heads": heads, "segments": split, "interpret": interpret}
    heads_of = {"q": heads.of_query, "k": heads.of_key, "v": heads.of_value, "dnum": heads.of_block, "dden": None}
    arrays = {"q": q, "k": k, "v": v, "dnum": dnum, "dden": dden}
    streams = {name: (arrays[name], head) for name, head in heads_of.items()}
    dq = paired_kernel(
        "taylor_dq",
        functools.partial(_dq_step, before=before),
        streams=streams,
        scanned=Scanned("k", "v"),
        start=borders,
        decay=plan.decay,
        outputs={"dq": KEY_DIM},
        last=False,
        reverse=False,
        **options,
    )["dq"]
    local = None
    if split.count > 1:
        local = local_states(q, dnum, dden, plan.decay, reverse=True, **options)
    ends = border_states(local, boundary, plan.block_log_decay, segments=split, reverse=True)
    out = paired_kernel(
        "taylor_dkdv",
        _dkdv_step,
        streams=streams,
        scanned=Scanned("q", "dnum", "first_q", "dden"),
        start=ends,
        decay=plan.decay,
        outputs={"dk": KEY_DIM, "dv": VALUE_DIM},
        last=True,
        reverse=True,
        **options,
    )

    # The count before the first token enters den_i as decay^(i+1) count, and the last count as decay^t count.
    dcount = dden.reshape(b, h, heads.tiles, -1).sum(2)
    if decay is not None:
        tokens = jnp.arange(1, split.padded + 1, dtype=jnp.float32)
        dcount = dcount * jnp.exp(log_decay[None, :, None] * tokens[None, None])
    dcount = dcount.sum(-1)
    if dstate is not None:
        dcount = dcount + dstate[1][..., 0] * (1.0 if decay is None else jnp.exp(t * log_decay)[None])
    ds, dz = unpack_state(out["s"], out["z"], dcount, key_dim, value_dim, z_sum=True)

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
