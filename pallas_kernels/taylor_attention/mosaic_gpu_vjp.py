"""Gradients of Taylor attention on Hopper: two Mosaic GPU kernels that recompute the state instead of storing
it.

With s_ij = q_i.k_j (q already scaled), P = 1 + s + s^2/2 (i >= j), den = sum_j P_ij + eps, y = (P v) / den:
  dnum = dy / den,  dden = -(dnum . y),  ds_ij = (dnum_i . v_j + dden_i) (1 + s_ij),
  dq_i = sum_j ds_ij k_j,  dk_j = sum_i ds_ij q_i,  dv_j = sum_i P_ij dnum_i.
Inside a chunk these are taken as written; across chunks through the state S before the chunk and its
cotangent dS after:
  U = dnum S^T,   dq += (U * B_q) A^T + (U * A_q) B^T + dden (z1 + Z2 q),
  W = v dS^T,     dk += (W * B_k) A^T + (W * A_k) B^T + dz1 + dZ2 k,      dv += phi(k) dS,
where phi(x) = A_x * B_x are the factors of `mosaic_gpu_state`, and dz1 = sum dden_i q_i, dZ2 = sum dden_i q_i
q_i^T. Kernel `dq` scans forward in time and recomputes S; kernel `dkdv` scans backward and carries dS. Each
block starts from the state of its segment, and nothing is stored per chunk.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.taylor_attention.mosaic_gpu import kernel_operands, plan_blocks
from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    GROUPS,
    KEY_DIM,
    VALUE_DIM,
    border_states,
    join_values,
    pack_state,
    pad_time,
    public_weights,
    selection_matrices,
    split_values,
    unpack_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_segments import local_states
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    PER_COLUMN,
    PER_ROW,
    STAGES,
    STATE_BUFFERS,
    WGMMA,
    Mma,
    Ring,
    StateRefs,
    columns_to,
    feature_factors,
    iota,
    launch,
    load_constants,
    load_state,
    rows_to,
    scan_states,
    selection_scratch,
    staging_scratch,
    state_scratch,
    store_state,
    this_block,
    tile,
    write_ones,
)


def _dq_kernel(q, k, v, dnum, dden, state, decay, *, scale, heads, segments, interpret):
    """scale * dq (b, t, h, 16), for q already scaled.

    q (b, t, h, 16), k (b, t, kv, 16), v (b, t, kv, 64), dnum (b, t, h, 64) bf16; dden (b, h, padded t)
    float32;
    state: s (b, h, n_seg, 3, 64, 64), z (b, h, n_seg, 64, 16) float32 at the start of every segment, or None.
    """
    first, first_q, second = selection_matrices()
    bf16, f32 = jnp.bfloat16, jnp.float32

    def body(r):
        block = this_block(r.decay, heads, segments, reverse=False)
        rates = block.decay
        staging = None if interpret is None else (r.stage_narrow, r.stage_wide)
        warpgroup = lax.axis_index("warpgroup")
        ring = Ring(
            loads=(
                (r.q, block.of_head(heads.of_query(block.head)), r.q_s),
                (r.k, block.of_head(heads.of_key(block.head)), r.k_s),
                (r.v, block.of_head(heads.of_value(block.head)), r.v_s),
                (r.dnum, block.of_head(block.head), r.dnum_s),
                (r.dden, block.along_time, r.dden_s),
            ),
            row=block.row,
            count=block.count,
            full=r.full,
            empty=r.empty,
        )

        @pl.when(warpgroup == 1)
        def _():
            load_constants(((r.first, r.first_s), (r.first_q, r.first_q_s), (r.second, r.second_s)), r.constants)
            ring.start()
            plgpu.barrier_wait(r.constants)
            refs = StateRefs(
                x=r.k_s,
                u=r.v_s,
                weight=None,
                first=r.first_s,
                second=r.second_s,
                phi=r.phi,
                x_t=r.x_t,
                s=r.state_s,
                z=r.state_z,
                s_full=r.s_full,
                s_empty=r.s_empty,
            )
            start = load_state(r.s, r.z, (block.batch, block.head, block.segment))
            scan_states(Mma(staging, 1), refs, ring, start, block.scan_factors())

        @pl.when(warpgroup == 0)
        def _():
            mma = Mma(staging, 0)
            write_ones(r.ones_s)
            plgpu.barrier_wait(r.constants)

            def chunk(position, _):
                slot = lax.rem(position, jnp.int32(STAGES))
                buffer = lax.rem(position, jnp.int32(STATE_BUFFERS))
                plgpu.barrier_wait(r.full.at[slot])
                q, k, v, dnum = r.q_s.at[slot], r.k_s.at[slot], r.v_s.at[slot], r.dnum_s.at[slot]
                s = mma.product(q, k.transpose((1, 0)))
                i, j = iota((64, 64), 0), iota((64, 64), 1)
                slope = jnp.where(i >= j, 1.0 + s, 0.0)
                if rates is not None:
                    slope = slope * rates.power(i - j)
                dden = plgpu.load(r.dden_s.at[slot], layout=PER_ROW)
                ds = ((mma.product(dnum, v.transpose((1, 0))) + rows_to(dden)) * slope).astype(bf16)
                since = None if rates is None else rates.since_start(PER_ROW)
                plgpu.barrier_wait(r.s_full.at[buffer])

                def from_z(acc):
                    mma.registers(acc, plgpu.load(q, layout=WGMMA), r.state_z.at[buffer, 0:KEY_DIM])
                    plgpu.wgmma(acc, r.ones_s, r.state_z.at[buffer, KEY_DIM : 2 * KEY_DIM])
                    return acc[...]

                past = pl.run_scoped(from_z, plgpu.ACC((64, KEY_DIM), f32))
                dden = dden if since is None else dden * since
                past = past * rows_to(dden, KEY_DIM)

                def from_keys(acc):
                    mma.registers(acc, ds, k)
                    for g in range(GROUPS):
                        left, right = feature_factors(mma, g, q, r.first_q_s, r.second_s)
                        u = mma.product(dnum, r.state_s.at[buffer * GROUPS + g])
                        if since is not None:
                            u = u * rows_to(since)
                        mma.registers(acc, (u * right).astype(bf16), r.first_q_s.at[g].transpose((1, 0)))
                        mma.registers(acc, (u * left).astype(bf16), r.second_s.at[g].transpose((1, 0)))
                    return acc[...]

                dq = past + pl.run_scoped(from_keys, plgpu.ACC((64, KEY_DIM), f32))
                plgpu.barrier_arrive(r.empty.at[slot])
                plgpu.barrier_arrive(r.s_empty.at[buffer])
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                r.dq_s[...] = (dq * np.float32(scale)).astype(bf16)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(r.dq_s, r.dq.at[block.of_head(block.head)(block.row(position))])

            lax.fori_loop(0, block.count, chunk, None)
            plgpu.wait_smem_to_gmem(0)

    s0, z0 = (None, None) if state is None else state
    return launch(
        "taylor_dq",
        body,
        {
            "q": q,
            "k": k,
            "v": v,
            "dnum": dnum,
            "dden": dden,
            "s": s0,
            "z": z0,
            "decay": decay,
            "first": first,
            "first_q": first_q,
            "second": second,
        },
        {"dq": jax.ShapeDtypeStruct((*q.shape[:2], heads.blocks, KEY_DIM), bf16)},
        dict(
            q_s=tile(STAGES, KEY_DIM),
            k_s=tile(STAGES, KEY_DIM),
            v_s=tile(STAGES, 64),
            dnum_s=tile(STAGES, 64),
            dden_s=plgpu.SMEM((STAGES, CHUNK), f32),
            dq_s=tile(None, KEY_DIM),
            full=plgpu.Barrier(num_arrivals=5, num_barriers=STAGES),
            constants=plgpu.Barrier(num_arrivals=3),
            **state_scratch(published=True),
            **selection_scratch("first", "first_q", "second"),
            **staging_scratch(interpret, 2),
        ),
        grid=(q.shape[0], heads.blocks, segments.count),
        warpgroups=2,
        interpret=interpret,
    )["dq"]


def _dkdv_kernel(q, k, v, dnum, dden, dstate, decay, *, heads, segments, interpret):
    """dk (b, t, h, 16), dv (b, t, h, 64), and the cotangent of the state before the first token, per query
    head.

    Operands as in `_dq_kernel`; dstate: cotangents (kernel layout, float32) of the state after the last token
    of every segment, or None for zeros. The returned state cotangent belongs to segment 0.
    """
    first, first_q, second = selection_matrices()
    bf16, f32 = jnp.bfloat16, jnp.float32

    def body(r):
        block = this_block(r.decay, heads, segments, reverse=True)
        rates = block.decay
        staging = None if interpret is None else (r.stage_narrow, r.stage_wide)
        warpgroup = lax.axis_index("warpgroup")
        ring = Ring(
            loads=(
                (r.q, block.of_head(heads.of_query(block.head)), r.q_s),
                (r.k, block.of_head(heads.of_key(block.head)), r.k_s),
                (r.v, block.of_head(heads.of_value(block.head)), r.v_s),
                (r.dnum, block.of_head(block.head), r.dnum_s),
                (r.dden, block.along_time, r.dden_s),
            ),
            row=block.row,
            count=block.count,
            full=r.full,
            empty=r.empty,
        )

        @pl.when(warpgroup == 1)
        def _():
            load_constants(((r.first, r.first_s), (r.first_q, r.first_q_s), (r.second, r.second_s)), r.constants)
            ring.start()
            plgpu.barrier_wait(r.constants)
            refs = StateRefs(
                x=r.q_s,
                u=r.dnum_s,
                weight=r.dden_s,
                first=r.first_q_s,
                second=r.second_s,
                phi=r.phi,
                x_t=r.x_t,
                s=r.state_s,
                z=r.state_z,
                s_full=r.s_full,
                s_empty=r.s_empty,
            )
            start = load_state(r.s, r.z, (block.batch, block.head, block.segment))
            last = scan_states(Mma(staging, 1), refs, ring, start, block.scan_factors())

            @pl.when(block.segment == 0)
            def _():
                store_state(r.ds0, r.dz0, (block.batch, block.head), last)

        @pl.when(warpgroup == 0)
        def _():
            mma = Mma(staging, 0)
            write_ones(r.ones_s)
            plgpu.barrier_wait(r.constants)

            def chunk(position, _):
                slot = lax.rem(position, jnp.int32(STAGES))
                buffer = lax.rem(position, jnp.int32(STATE_BUFFERS))
                plgpu.barrier_wait(r.full.at[slot])
                q, k, v, dnum = r.q_s.at[slot], r.k_s.at[slot], r.v_s.at[slot], r.dnum_s.at[slot]
                s = mma.product(k, q.transpose((1, 0)))
                j, i = iota((64, 64), 0), iota((64, 64), 1)
                slope = jnp.where(i >= j, 1.0 + s, 0.0)
                weights = jnp.where(i >= j, 1.0 + s + 0.5 * (s * s), 0.0)
                if rates is not None:
                    power = rates.power(i - j)
                    weights, slope = weights * power, slope * power
                weights = weights.astype(bf16)
                dden = plgpu.load(r.dden_s.at[slot], layout=PER_COLUMN)
                ds = ((mma.product(v, dnum.transpose((1, 0))) + columns_to(dden)) * slope).astype(bf16)
                until = None if rates is None else rates.until_end(block.length(position), PER_ROW)
                plgpu.barrier_wait(r.s_full.at[buffer])

                def from_z(acc):
                    mma.registers(acc, plgpu.load(k, layout=WGMMA), r.state_z.at[buffer, 0:KEY_DIM])
                    plgpu.wgmma(acc, r.ones_s, r.state_z.at[buffer, KEY_DIM : 2 * KEY_DIM])
                    return acc[...]

                later = pl.run_scoped(from_z, plgpu.ACC((64, KEY_DIM), f32))
                if until is not None:
                    later = later * rows_to(until, KEY_DIM)

                def from_queries(dv, dk):
                    mma.registers(dv, weights, dnum)
                    mma.registers(dk, ds, q)
                    for g in range(GROUPS):
                        left, right = feature_factors(mma, g, k, r.first_s, r.second_s)
                        dstate = r.state_s.at[buffer * GROUPS + g]
                        if until is not None:
                            right = right * rows_to(until)
                        mma.registers(dv, (left * right).astype(bf16), dstate.transpose((1, 0)))
                        w = mma.product(v, dstate)
                        mma.registers(dk, (w * right).astype(bf16), r.first_s.at[g].transpose((1, 0)))
                        if until is not None:
                            w = w * rows_to(until)
                        mma.registers(dk, (w * left).astype(bf16), r.second_s.at[g].transpose((1, 0)))
                    return dv[...], dk[...]

                dv, dk = pl.run_scoped(from_queries, plgpu.ACC((64, VALUE_DIM), f32), plgpu.ACC((64, KEY_DIM), f32))
                dk = dk + later
                plgpu.barrier_arrive(r.empty.at[slot])
                plgpu.barrier_arrive(r.s_empty.at[buffer])
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                r.dk_o[...] = dk.astype(bf16)
                r.dv_o[...] = dv.astype(bf16)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(r.dk_o, r.dk.at[block.of_head(block.head)(block.row(position))])
                plgpu.copy_smem_to_gmem(r.dv_o, r.dv.at[block.of_head(block.head)(block.row(position))])

            lax.fori_loop(0, block.count, chunk, None)
            plgpu.wait_smem_to_gmem(0)

    s1, z1 = (None, None) if dstate is None else dstate
    b, t = q.shape[:2]
    shape = jax.ShapeDtypeStruct
    return launch(
        "taylor_dkdv",
        body,
        {
            "q": q,
            "k": k,
            "v": v,
            "dnum": dnum,
            "dden": dden,
            "s": s1,
            "z": z1,
            "decay": decay,
            "first": first,
            "first_q": first_q,
            "second": second,
        },
        {
            "dk": shape((b, t, heads.blocks, KEY_DIM), bf16),
            "dv": shape((b, t, heads.blocks, VALUE_DIM), bf16),
            "ds0": shape((b, heads.blocks, GROUPS, VALUE_DIM, 64), f32),
            "dz0": shape((b, heads.blocks, 64, KEY_DIM), f32),
        },
        dict(
            q_s=tile(STAGES, KEY_DIM),
            k_s=tile(STAGES, KEY_DIM),
            v_s=tile(STAGES, 64),
            dnum_s=tile(STAGES, 64),
            dden_s=plgpu.SMEM((STAGES, CHUNK), f32),
            dk_o=tile(None, KEY_DIM),
            dv_o=tile(None, 64),
            full=plgpu.Barrier(num_arrivals=5, num_barriers=STAGES),
            constants=plgpu.Barrier(num_arrivals=3),
            **state_scratch(published=True),
            **selection_scratch("first", "first_q", "second"),
            **staging_scratch(interpret, 2),
        ),
        grid=(q.shape[0], heads.blocks, segments.count),
        warpgroups=2,
        interpret=interpret,
    )


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
    scale = key_dim**-0.5 if scale is None else scale
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
        boundary = pack_state(dstate[0], dstate[1] / public_weights(key_dim)[None, None], key_dim, z_once=True)
    q, k, v = kernel_operands(q, k, v, scale)
    dnum = pad_time(dnum, t)
    options = {"heads": heads, "segments": split, "interpret": interpret}
    dq = _dq_kernel(q, k, v, dnum, dden, borders, plan.decay, scale=scale, **options)
    local = None
    if split.count > 1:
        local = local_states(q, dnum, dden, plan.decay, reverse=True, **options)
    ends = border_states(local, boundary, plan.block_log_decay, segments=split, reverse=True)
    out = _dkdv_kernel(q, k, v, dnum, dden, ends, plan.decay, **options)

    # The count before the first token enters den_i as gamma^(i+1) count, and the last count as gamma^t count.
    dcount = dden.reshape(b, h, heads.tiles, -1).sum(2)
    if decay is not None:
        tokens = jnp.arange(1, split.padded + 1, dtype=jnp.float32)
        dcount = dcount * jnp.exp(log_decay[None, :, None] * tokens[None, None])
    dcount = dcount.sum(-1)
    if dstate is not None:
        dcount = dcount + dstate[1][..., 0] * (1.0 if decay is None else jnp.exp(t * log_decay)[None])
    ds, dz = unpack_state(out["ds0"], out["dz0"], dcount, key_dim, value_dim, z_sum=True)

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
        dz * public_weights(key_dim)[None, None],
    )
