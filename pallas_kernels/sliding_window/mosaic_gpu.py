"""Sliding-window attention on Hopper, forward: one Mosaic GPU kernel.

With s_ij = scale q_i.k_j over the keys j that query i sees: y_i = sum_j exp(s_ij) v_j / l_i, l_i = sum_j exp(s_ij), and
lse_i = log l_i for the backward pass. Inside the kernel exponents are base 2.

Each warpgroup computes a run of 64-query blocks. Up to a window of 128 (3 key blocks) the scores of a query block are
in registers together, their softmax is exact in one pass, and shared memory keeps the key blocks from one query block
to the next; wider windows stream their key blocks and rescale the running sums (the online softmax).

Needs a device: wgmma with the probabilities in registers, which interpret mode passes through shared memory; starting
accumulators from rescaled sums, which it does by adding; speed.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import rows_to
from pallas_kernels.sliding_window.mosaic_gpu_blocks import (
    Stationary,
    WorkTiles,
    launch_tasks,
    products,
    rows,
    scratch_of,
)
from pallas_kernels.sliding_window.mosaic_gpu_layout import (
    AUTO,
    BLOCK,
    BlockWindow,
    Geometry,
    Plan,
    Tuning,
    first_keys,
    pad_rows,
    pad_vectors,
    plan_kernel,
)
from pallas_kernels.sliding_window.mosaic_gpu_mask import LN_2, LOG2_E, LOWEST, make_mask
from pallas_kernels.sliding_window.mosaic_gpu_ring import key_ring, run_tiles

TINY = np.float32(1e-30)


def _forward_kernel(q, k, v, start, segment_ids, *, problem, plan, scale, interpret):
    """y (b, t padded, h, d) bf16 and lse (b, h, t padded) float32.

    Operands as `kernel_operands` makes them.
    """
    bf16, f32 = jnp.bfloat16, jnp.float32
    scale = np.float32(scale) * LOG2_E
    d = problem.d

    def body(r):
        work = WorkTiles.of_warpgroup(problem.h, problem.query_blocks, plan)
        mma = work.mma(r.stage)
        stationary = Stationary(work, plan, (r.q,), r)
        ring = key_ring(r, work, plan, problem)
        mask = make_mask(r, ring, work.batch)

        def attend(n, units, q_s, sums):
            """Adds partners to the sums: the maximum and the total of each row, and the values; None before any."""
            ring.wait("k", n, 0, units)
            groups, found = mask.grouped(units), []
            for group in groups:
                parts = products(*[(q_s, r.k_s.at[ring.slot("k", n, 0, u)].T) for u in group])
                parts = [mask.exponents(s, scale, n, u) for u, s in zip(group, parts, strict=True)]
                found.append(mask.fold(parts))
            plgpu.commit_smem()
            ring.spent("k", n, 0, units)
            stationary.spent(n)
            top = functools.reduce(jnp.maximum, found).max(axis=1)
            top = jnp.maximum(top, LOWEST if sums is None else sums[0])
            found = [jnp.exp2(s - rows_to(top)) for s in found]
            total = functools.reduce(operator.add, found).sum(axis=1)
            found = [part for p, group in zip(found, groups, strict=True) for part in mask.unfold(p, group)]
            ring.wait("v", n, 0, units)

            def accumulate(acc):
                for u, p in zip(units, found, strict=True):
                    mma.registers(acc, p, r.v_s.at[ring.slot("v", n, 0, u)])

            def from_zero(acc):
                accumulate(acc)
                return acc[...]

            if sums is None:
                values = pl.run_scoped(from_zero, plgpu.ACC((BLOCK, d), f32))
            else:
                shrink = jnp.exp2(sums[0] - top)
                total = sums[1] * shrink + total
                (values,) = mma.update((sums[2] * rows_to(shrink, d),), accumulate)
            plgpu.commit_smem()
            ring.spent("v", n, 0, units)
            return top, total, values

        def step(n, _):
            (q_s,) = stationary.wait(n)
            first = attend(n, ring.first_units, q_s, None)
            top, total, values = ring.rest(lambda u, sums: attend(n, (u,), q_s, sums), first)
            r.lse[work.batch, work.head, rows(n)] = top * LN_2 + jnp.log(total)
            stationary.store(n, [values * rows_to(1.0 / jnp.maximum(total, TINY), d)], [r.y])

        run_tiles(work, stationary, ring, step)

    return launch_tasks(
        "sliding_window_forward",
        body,
        {"q": q, "k": k, "v": v, "start": start, "segment_ids": segment_ids},
        {
            "y": jax.ShapeDtypeStruct(q.shape, bf16),
            "lse": jax.ShapeDtypeStruct((problem.b, problem.h, problem.query_blocks * BLOCK), f32),
        },
        scratch_of(plan, d, stationary=1, results=1, ring={"k": None, "v": None}, interpret=interpret),
        batch=problem.b,
        tasks=plan.tasks(problem.h, problem.query_blocks),
        plan=plan,
        interpret=interpret,
    )


def kernel_operands(q, k, v, start, segment_ids, problem: Geometry):
    """q (b, t padded, h, d), k and v (b, s padded, g, d), start (b,) and segment_ids (b, t padded) int32 or None."""
    start = first_keys(start, problem)
    ids = None if segment_ids is None else pad_vectors(segment_ids.astype(jnp.int32))
    return pad_rows(q), pad_rows(k, problem.front), pad_rows(v, problem.front), start, ids


def forward(q, k, v, start, segment_ids, *, window, scale, interpret=None, tuning=AUTO):
    """Causal attention over a sliding window.

    Query i sees key j where i + past - window < j <= i + past with past = s - t, j >= start and segment_ids agree.

    Args:
      q: (b, t, h, d) bf16, t >= 1, d a multiple of 16 up to 128.
      k, v: (b, s, g, d) bf16, s >= t, g dividing h; query head i reads kv head i // (h / g).
      start: (b,) int32 or None for 0.
      segment_ids: (b, t) int32 or None; only with s = t.
      window: 1 .. 1024.
      scale: of the scores.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.
      tuning: overrides of the plan.

    Returns:
      y (b, t, h, d) bf16, zero where a query sees no key; lse (b, h, t) float32, -inf there.
    """
    check_supported(q, k, v, segment_ids, window)
    problem = Geometry.of(q, k, window)
    operands = kernel_operands(q, k, v, start, segment_ids, problem)
    plan = plan_forward(problem, tuning)
    out = _forward_kernel(*operands, problem=problem, plan=plan, scale=scale, interpret=interpret)
    return out["y"][:, : problem.t], out["lse"][:, :, : problem.t]


def plan_forward(problem: Geometry, tuning: Tuning) -> Plan:
    return plan_kernel(
        problem,
        stationary=1,
        results=1,
        most=most_warpgroups(problem.d, problem.block_window),
        heads=problem.h,
        stationary_blocks=problem.query_blocks,
        tuning=tuning,
    )


def most_warpgroups(d: int, window: BlockWindow) -> int:
    """Warpgroups whose accumulators (d columns) and scores a core holds in registers, as found by compiling."""
    tiles = 3 if window.blocks == 3 else 2
    if d <= 64 and tiles == 2:
        return 4
    return 3 if window.window % BLOCK == 0 and d + BLOCK * (tiles - 2) <= 128 else 2


def check_supported(q, k, v, segment_ids, window):
    """Raises NotImplementedError for what these kernels do not take."""
    d, past = q.shape[-1], k.shape[1] - q.shape[1]
    rule = None
    if any(x.dtype != jnp.bfloat16 for x in (q, k, v)):
        rule = f"dtypes {q.dtype}, {k.dtype}, {v.dtype} are not all bfloat16"
    elif d % 16 or not 16 <= d <= 128:
        rule = f"head_dim={d} is not a multiple of 16 up to 128"
    elif not 1 <= window <= 1024:
        rule = f"window={window} is not in 1 .. 1024"
    elif segment_ids is not None and past:
        rule = f"segment_ids with past={past}"
    if rule:
        raise NotImplementedError(f"mosaic_gpu: {rule}; use implementation='xla'")
