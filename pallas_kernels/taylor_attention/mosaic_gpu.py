"""Taylor attention on Hopper, forward: one Mosaic GPU kernel, split over sequence segments when heads are
few.

With s_ij = q_i.k_j (q already scaled): y_i = sum_{j <= i} (1 + s + s^2/2) v_j / den_i, den_i = the sum of
weights + eps. Inside a chunk of 64 the weights are formed as written; the past enters through the state
before the chunk:
  y_i += phi_q(q_i) S,    den_i += n + q_i.z1 + q_i^T Z2 q_i / 2.
Two warpgroups per block: one scans the state and issues TMA, the other computes outputs from the published
bf16 states. Two, not three: each may use 255 registers without setmaxnreg, which ptxas ignores under jax
0.12.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    GROUPS,
    KEY_DIM,
    VALUE_DIM,
    Heads,
    Segments,
    border_states,
    choose_segments,
    decay_table,
    decayed_counts,
    join_values,
    pack_state,
    pad_minor,
    pad_time,
    selection_matrices,
    split_values,
    unpack_state,
)
from pallas_kernels.taylor_attention.mosaic_gpu_segments import local_states
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    PER_ROW,
    STAGES,
    STATE_BUFFERS,
    WGMMA,
    Mma,
    Ring,
    StateRefs,
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


def _output_kernel(q, k, v, count0, state, decay, *, heads, segments, normalize, eps, interpret):
    """y (b, t, h, 64) bf16, den (b, h, padded t) float32 if normalize, and the last state s, z in kernel
    layout.

    q (b, t, h, 16) scaled, k (b, t, kv, 16), v (b, t, kv, 64) bf16; count0 (b, h, n_seg) float32, the decayed
    count of tokens before each segment; state: s (b, h, n_seg, 3, 64, 64), z (b, h, n_seg, 64, 16) float32 at
    the start of each segment, or None for zeros; decay (h, 4) from `decay_table`, or None.
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
            last = scan_states(Mma(staging, 1), refs, ring, start, block.scan_factors())

            @pl.when(block.segment == segments.count - 1)
            def _():
                store_state(r.s_last, r.z_last, (block.batch, block.head), last)

        @pl.when(warpgroup == 0)
        def _():
            mma = Mma(staging, 0)
            write_ones(r.ones_s)
            plgpu.barrier_wait(r.constants)

            def chunk(position, tokens):
                slot = lax.rem(position, jnp.int32(STAGES))
                buffer = lax.rem(position, jnp.int32(STATE_BUFFERS))
                plgpu.barrier_wait(r.full.at[slot])
                q, k, v = r.q_s.at[slot], r.k_s.at[slot], r.v_s.at[slot]
                s = mma.product(q, k.transpose((1, 0)))
                i, j = iota((64, 64), 0), iota((64, 64), 1)
                weights = jnp.where(i >= j, 1.0 + s + 0.5 * (s * s), 0.0)
                if rates is not None:
                    weights = weights * rates.power(i - j)
                since = None if rates is None else rates.since_start(PER_ROW)
                plgpu.barrier_wait(r.s_full.at[buffer])
                if normalize:
                    x = plgpu.load(q, layout=WGMMA)

                    def from_z(acc):
                        mma.registers(acc, x * jnp.asarray(0.5, bf16), r.state_z.at[buffer, 0:KEY_DIM])
                        plgpu.wgmma(acc, r.ones_s, r.state_z.at[buffer, KEY_DIM : 2 * KEY_DIM])
                        return acc[...]

                    past = pl.run_scoped(from_z, plgpu.ACC((64, KEY_DIM), f32))
                    past = (past * x.astype(f32)).sum(axis=1) + tokens
                    den = weights.sum(axis=1) + (past if since is None else past * since) + eps
                weights = weights.astype(bf16)

                def from_values(acc):
                    mma.registers(acc, weights, v)
                    for g in range(GROUPS):
                        left, right = feature_factors(mma, g, q, r.first_q_s, r.second_s)
                        phi = left * right
                        if since is not None:
                            phi = phi * rows_to(since)
                        mma.registers(acc, phi.astype(bf16), r.state_s.at[buffer * GROUPS + g].transpose((1, 0)))
                    return acc[...]

                y = pl.run_scoped(from_values, plgpu.ACC((64, VALUE_DIM), f32))
                plgpu.barrier_arrive(r.empty.at[slot])
                plgpu.barrier_arrive(r.s_empty.at[buffer])
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                if normalize:
                    r.den_o[...] = den
                    y = y * rows_to(1.0 / den)
                r.y_o[...] = y.astype(bf16)
                plgpu.commit_smem()
                row = block.row(position)
                plgpu.copy_smem_to_gmem(r.y_o, r.y.at[block.of_head(block.head)(row)])
                if normalize:
                    plgpu.copy_smem_to_gmem(r.den_o, r.den.at[block.along_time(row)])
                if rates is not None:
                    return rates.next_count(tokens)
                return tokens + np.float32(CHUNK)

            lax.fori_loop(0, block.count, chunk, r.count0[block.batch, heads.of_query(block.head), block.segment])
            plgpu.wait_smem_to_gmem(0)

    s0, z0 = (None, None) if state is None else state
    b, t = q.shape[:2]
    shape = jax.ShapeDtypeStruct
    outputs = {
        "y": shape((b, t, heads.blocks, VALUE_DIM), bf16),
        "s_last": shape((b, heads.blocks, GROUPS, VALUE_DIM, 64), f32),
        "z_last": shape((b, heads.blocks, 64, KEY_DIM), f32),
    }
    if normalize:
        outputs["den"] = shape((b, heads.blocks, segments.padded), f32)
    return launch(
        "taylor_forward",
        body,
        {
            "q": q,
            "k": k,
            "v": v,
            "count0": count0,
            "s": s0,
            "z": z0,
            "decay": decay,
            "first": first,
            "first_q": first_q,
            "second": second,
        },
        outputs,
        dict(
            q_s=tile(STAGES, KEY_DIM),
            k_s=tile(STAGES, KEY_DIM),
            v_s=tile(STAGES, 64),
            y_o=tile(None, 64),
            den_o=plgpu.SMEM((CHUNK,), f32),
            full=plgpu.Barrier(num_arrivals=3, num_barriers=STAGES),
            constants=plgpu.Barrier(num_arrivals=3),
            **state_scratch(published=True),
            **selection_scratch("first", "first_q", "second"),
            **staging_scratch(interpret, 2),
        ),
        grid=(q.shape[0], heads.blocks, segments.count),
        warpgroups=2,
        interpret=interpret,
    )


class Forward(NamedTuple):
    """Result of `forward`, with what `backward` needs."""

    y: jax.Array  # (b, t, h, v) bf16
    s: jax.Array  # (b, h, f, v) float32, state after the last token
    z: jax.Array  # (b, h, f) float32
    den: jax.Array | None  # (b, t, h) float32: sum of weights + eps; None without normalisation
    borders: tuple[jax.Array, jax.Array] | None  # kernel states where segments start; None for zeros


class Plan(NamedTuple):
    heads: Heads
    segments: Segments
    log_decay: jax.Array | None  # (h,)
    block_log_decay: jax.Array | None  # (h * tiles,)
    decay: jax.Array | None  # `decay_table`


def plan_blocks(q, k, v, decay, segments: int | None) -> Plan:
    """Cuts the problem into thread blocks, one per batch row, query head, tile of 64 values and segment."""
    b, t, h, _ = q.shape
    heads = Heads(h, k.shape[2], -(-v.shape[-1] // VALUE_DIM))
    split = Segments(t, choose_segments(b * heads.blocks, t) if segments is None else segments)
    log_decay = None if decay is None else jnp.log(decay.astype(jnp.float32))
    per_block = None if decay is None else jnp.repeat(log_decay, heads.tiles)
    return Plan(heads, split, log_decay, per_block, decay_table(log_decay))


def kernel_operands(q, k, v, scale):
    """q scaled, q and k padded to 16 features, v cut into tiles of 64, all padded in time where TMA needs it.

    Nothing is copied but q where scale != 1, when k = 16, v and t are multiples of 64 and 8. scale * q is
    exact where scale is a power of two, as 16^-1/2 is, and rounded once otherwise.
    """
    t = q.shape[1]
    q = q if scale == 1 else q * jnp.asarray(scale, q.dtype)
    return tuple(pad_time(x, t) for x in (pad_minor(q, KEY_DIM), pad_minor(k, KEY_DIM), split_values(v)))


def forward(
    q, k, v, *, scale=None, eps=1e-12, normalize=True, initial_state=None, decay=None, segments=None, interpret=None
) -> Forward:
    """Taylor attention on Hopper and later.

    Args:
      q: (b, t, h, k) bf16, t >= 1, k <= 16.
      k: (b, t, g, k) bf16, g dividing h; query head i reads key head i // (h // g).
      v: (b, t, g, v) bf16; computed in tiles of 64 values, each of which repeats the work on the weights.
      scale: s = scale * q.k; default k^-1/2.
      eps: added to the sum of weights.
      normalize: False leaves out the division, and `den`.
      initial_state: public (s, z), (b, h, f, v) and (b, h, f) float32, or None for zeros.
      decay: (h,) in (0, 1], weights and states decay by decay^(i - j); None compiles without it.
      segments: blocks per head over which the sequence is split; default fills 132 cores.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.
    """
    check_supported(q, k, v)
    b, t, h, key_dim = q.shape
    value_dim = v.shape[-1]
    plan = plan_blocks(q, k, v, decay, segments)
    heads, split = plan.heads, plan.segments
    q, k, v = kernel_operands(q, k, v, key_dim**-0.5 if scale is None else scale)
    boundary, count0 = None, jnp.zeros((b, h), jnp.float32)
    if initial_state is not None:
        boundary, count0 = pack_state(*initial_state, key_dim), initial_state[1][..., 0]
    options = {"heads": heads, "segments": split, "interpret": interpret}
    local = None
    if split.count > 1:
        local = local_states(k, v, None, plan.decay, reverse=False, **options)
    borders = border_states(local, boundary, plan.block_log_decay, segments=split, reverse=False)
    starts = [i * split.chunks_each * CHUNK for i in range(split.count)]
    counts = jnp.stack([decayed_counts(plan.log_decay, count0, n) for n in starts], -1)
    out = _output_kernel(q, k, v, counts, borders, plan.decay, normalize=normalize, eps=eps, **options)
    count = decayed_counts(plan.log_decay, count0, t)
    s, z = unpack_state(out["s_last"], out["z_last"], count, key_dim, value_dim)
    den = jnp.swapaxes(out["den"][:, :: heads.tiles, :t], 1, 2) if normalize else None
    return Forward(join_values(out["y"][:, :t], h, value_dim), s, z, den, borders)


def check_supported(q, k, v):
    """Raises NotImplementedError for what these kernels do not take."""
    rule = None
    if q.shape[-1] > KEY_DIM:
        rule = f"feature_dim={q.shape[-1]} is more than {KEY_DIM}, whose state fills the registers of a warpgroup"
    elif any(x.dtype != jnp.bfloat16 for x in (q, k, v)):
        rule = f"dtypes {q.dtype}, {k.dtype}, {v.dtype} are not all bfloat16"
    elif q.shape[1] < 1:
        rule = "t=0"
    if rule:
        raise NotImplementedError(f"mosaic_gpu: {rule}; use implementation='xla'")
