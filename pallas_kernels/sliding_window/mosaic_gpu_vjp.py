"""Gradients of sliding-window attention on Hopper: one Mosaic GPU kernel if possible, else two; no atomics.

With P_ij = exp(scale q_i.k_j - lse_i) for visible pairs, dP_ij = dy_i.v_j, delta_i = sum_j P_ij dP_ij (= dy_i.y_i):
  dS = P (dP - delta),    dq_i = scale sum_j dS_ij k_j,    dk_j = scale sum_i dS_ij q_i,    dv_j = sum_i P_ij dy_i.
`single_pass` reads every operand once, for windows of 2 to 128 and heads that fit in registers (`plan_single_pass`).
Other calls use the two kernels of this file. `dq` has stationary query blocks. If their key blocks are kept, the kernel
computes delta for the other kernel; else XLA computes dy.y. `dkdv` has stationary key blocks, with the query blocks of
every query head that shares the kv head, one head after another.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import PER_COLUMN, columns_to, rows_to
from pallas_kernels.sliding_window.mosaic_gpu import LOG2_E, kernel_operands, make_mask
from pallas_kernels.sliding_window.mosaic_gpu_blocks import (
    Ring,
    Stationary,
    WorkTiles,
    key_ring,
    launch_tasks,
    products,
    rows,
    run_tiles,
    scratch_of,
)
from pallas_kernels.sliding_window.mosaic_gpu_layout import (
    AUTO,
    BLOCK,
    Geometry,
    pad_rows,
    pad_vectors,
    plan_dkdv,
    plan_dq,
)
from pallas_kernels.sliding_window.mosaic_gpu_single_pass import plan_single_pass, single_pass


def _dq_kernel(q, k, v, start, segment_ids, lse, dy, delta, *, problem, plan, scale, interpret):
    """dq (b, t padded, h, d) bf16, and delta (b, h, t padded) float32 if it is not given: if the plan keeps partners.

    q, k, v, start, segment_ids from `kernel_operands`; dy like q; lse like delta.
    """
    d, f32 = problem.d, jnp.float32
    scale_2 = np.float32(scale) * LOG2_E

    def body(r):
        work = WorkTiles.of_warpgroup(problem.h, problem.query_blocks, plan)
        mma = work.mma(r.stage)
        vectors = ((r.lse, r.lse_s),) if delta is None else ((r.lse, r.lse_s), (r.delta, r.delta_s))
        stationary = Stationary(work, plan, (r.q, r.dy), r, vectors)
        ring = key_ring(r, work, plan, problem)
        mask = make_mask(r, ring, work.batch)

        def score_gradients(n, units, operands, lse, delta):
            """Pairs (u, dS bf16) of some partners."""
            q_s, dy_s = operands
            groups, found, dfound = mask.grouped(units), [], []
            for group in groups:
                ring.wait("k", n, 0, group)
                parts = products(*[(q_s, r.k_s.at[ring.slot("k", n, 0, u)].T) for u in group])
                parts = [mask.exponents(s, scale_2, n, u, lse) for u, s in zip(group, parts, strict=True)]
                found.append(jnp.exp2(mask.fold(parts)))
                ring.wait("v", n, 0, group)
                dfound.append(mask.fold(products(*[(dy_s, r.v_s.at[ring.slot("v", n, 0, u)].T) for u in group])))
            plgpu.commit_smem()
            ring.spent("v", n, 0, units)
            stationary.spent(n)
            if delta is None:
                pairs = zip(found, dfound, strict=True)
                delta = functools.reduce(operator.add, [p * dp for p, dp in pairs]).sum(axis=1)
                r.delta_o[work.batch, work.head, rows(n)] = delta
            tiles = [p * (dp - rows_to(delta)) for p, dp in zip(found, dfound, strict=True)]
            parts = [part for ds, group in zip(tiles, groups, strict=True) for part in mask.unfold(ds, group)]
            return tuple(zip(units, parts, strict=True))

        def accumulate(dq, n, parts):
            """dq += dS k."""
            for u, ds in parts:
                mma.registers(dq, ds, r.k_s.at[ring.slot("k", n, 0, u)])
            plgpu.wgmma_wait(0)
            plgpu.commit_smem()
            ring.spent("k", n, 0, tuple(u for u, _ in parts))

        def step(n, _):
            operands = stationary.wait(n)
            lse = stationary.vector(0) * LOG2_E
            delta = None if r.delta is None else stationary.vector(1)
            parts = score_gradients(n, ring.first_units, operands, lse, delta)

            def run(dq):
                accumulate(dq, n, parts)
                ring.rest(lambda u, _: accumulate(dq, n, score_gradients(n, (u,), operands, lse, delta)), None)
                return dq[...]

            dq = pl.run_scoped(run, plgpu.ACC((BLOCK, d), f32))
            stationary.store(n, [dq * np.float32(scale)], [r.dq])

        run_tiles(work, stationary, ring, step)

    outputs = {"dq": jax.ShapeDtypeStruct(q.shape, jnp.bfloat16)}
    if delta is None:
        outputs["delta_o"] = jax.ShapeDtypeStruct(lse.shape, f32)
    return launch_tasks(
        "sliding_window_dq",
        body,
        {"q": q, "k": k, "v": v, "start": start, "segment_ids": segment_ids, "lse": lse, "dy": dy, "delta": delta},
        outputs,
        scratch_of(
            plan,
            d,
            stationary=2,
            results=1,
            ring={"k": None, "v": None},
            vectors=("lse",) if delta is None else ("lse", "delta"),
            interpret=interpret,
        ),
        batch=problem.b,
        tasks=plan.tasks(problem.h, problem.query_blocks),
        plan=plan,
        interpret=interpret,
    )


def _dkdv_kernel(q, k, v, start, segment_ids, lse, dy, delta, *, problem, plan, scale, interpret):
    """dk, dv (b, s padded, g, d) bf16; operands as for `_dq_kernel`, with delta."""
    d, f32 = problem.d, jnp.float32
    scale_2 = np.float32(scale) * LOG2_E

    def body(r):
        work = WorkTiles.of_warpgroup(problem.g, problem.key_blocks, plan)
        mma = work.mma(r.stage)
        stationary = Stationary(work, plan, (r.k, r.v), r)

        def query_head(member):
            return work.head * problem.group + member

        def of_queries(ref):
            return lambda block, member: ref.at[work.batch, rows(block), query_head(member)]

        def per_query(ref):
            return lambda block, member: ref.at[work.batch, query_head(member), rows(block)]

        ring = Ring(
            work=work,
            plan=plan,
            block_window=problem.block_window,
            members=problem.group,
            direction=1,
            shift=-problem.past_blocks,
            limit=problem.query_blocks,
            loads={
                "q": ((of_queries(r.q), r.q_s), (per_query(r.lse), r.lse_s)),
                "dy": ((of_queries(r.dy), r.dy_s), (per_query(r.delta), r.delta_s)),
            },
            full={"q": r.q_full, "dy": r.dy_full},
        )
        mask = make_mask(r, ring, work.batch)

        def per_column(ref, slot):
            return plgpu.load(ref.at[slot], layout=PER_COLUMN)

        def attend(dk, dv, n, member, u, k_s, v_s):
            """Adds one partner to dk and dv."""
            q_slot, dy_slot = (ring.slot(name, n, member, u) for name in ("q", "dy"))
            ring.wait("q", n, member, (u,))
            (s,) = products((k_s, r.q_s.at[q_slot].T))
            p = jnp.exp2(mask.exponents(s, scale_2, n, u, per_column(r.lse_s, q_slot) * LOG2_E))
            ring.wait("dy", n, member, (u,))
            mma.registers(dv, p.astype(jnp.bfloat16), r.dy_s.at[dy_slot])
            if d > BLOCK:
                plgpu.wgmma_wait(0)  # frees the registers of p; for small d the matmuls may overlap
            # Starting from -delta takes fewer registers than subtracting it.
            less_delta = columns_to(-per_column(r.delta_s, dy_slot))
            (dp,) = mma.update((less_delta,), lambda acc: plgpu.wgmma(acc, v_s, r.dy_s.at[dy_slot].T))
            mma.registers(dk, (p * dp).astype(jnp.bfloat16), r.q_s.at[q_slot])
            plgpu.wgmma_wait(0)
            plgpu.commit_smem()
            ring.spent("dy", n, member, (u,))
            ring.spent("q", n, member, (u,))

        def step(n, _):
            operands = stationary.wait(n)

            def run(dk, dv):
                def visit(member, _):
                    def add(u, _):
                        return attend(dk, dv, n, member, u, *operands)

                    for u in ring.first_units:
                        add(u, None)
                    ring.rest(add, None)

                if problem.group == 1:
                    visit(0, None)
                else:
                    lax.fori_loop(0, problem.group, visit, None)
                return dk[...], dv[...]

            dk, dv = pl.run_scoped(run, plgpu.ACC((BLOCK, d), f32), plgpu.ACC((BLOCK, d), f32))
            stationary.spent(n)
            stationary.store(n, [dk * np.float32(scale), dv], [r.dk, r.dv])

        run_tiles(work, stationary, ring, step)

    return launch_tasks(
        "sliding_window_dkdv",
        body,
        {"q": q, "k": k, "v": v, "start": start, "segment_ids": segment_ids, "lse": lse, "dy": dy, "delta": delta},
        {name: jax.ShapeDtypeStruct(k.shape, jnp.bfloat16) for name in ("dk", "dv")},
        scratch_of(plan, d, stationary=2, results=2, ring={"q": "lse", "dy": "delta"}, interpret=interpret),
        batch=problem.b,
        tasks=plan.tasks(problem.g, problem.key_blocks),
        plan=plan,
        interpret=interpret,
    )


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window, scale, interpret=None, tuning=AUTO):
    """dq, dk, dv of `mosaic_gpu.forward`; y, lse: its results; tuning: overrides of the plans."""
    problem = Geometry.of(q, k, window)
    operands = kernel_operands(q, k, v, start, segment_ids, problem)
    lse, padded_dy, delta = pad_vectors(lse), pad_rows(dy), None
    options = {"problem": problem, "scale": scale, "interpret": interpret}
    keys = slice(problem.front, problem.front + problem.s)
    if (plan := plan_single_pass(problem, tuning)) is not None:
        out = single_pass(*operands, lse, padded_dy, plan=plan, **options)
        return out["dq"][:, : problem.t], out["dk"][:, keys], out["dv"][:, keys]
    plan = plan_dq(problem, tuning)
    if not plan.kept:
        delta = pad_vectors((dy.astype(jnp.float32) * y.astype(jnp.float32)).sum(-1).swapaxes(1, 2))
    out = _dq_kernel(*operands, lse, padded_dy, delta, plan=plan, **options)
    delta = out["delta_o"] if delta is None else delta
    dkdv = _dkdv_kernel(*operands, lse, padded_dy, delta, plan=plan_dkdv(problem, tuning), **options)
    return out["dq"][:, : problem.t], dkdv["dk"][:, keys], dkdv["dv"][:, keys]
