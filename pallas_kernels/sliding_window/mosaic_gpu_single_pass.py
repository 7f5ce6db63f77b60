"""Gradients of sliding-window attention on Hopper in one pass: one Mosaic GPU kernel, no atomics.

Equations: `mosaic_gpu_vjp`. A thread block takes a run of key blocks of one kv head. In step j the queries of key block
j meet all key blocks that they see: one meeting for every query head that shares the kv head. With a step dk and dv of
its farthest key block are complete; the sums of the others wait in registers for later queries. Behind a run come the
steps of the queries that still see its last keys; their dq, and dk and dv of their own keys, belong to the next run. So
runs read some blocks of their neighbours, and share no sums: any run gives the same bits.

Two warpgroups share a meeting. Each computes P and dS of its own partners: warpgroup 0 of the diagonal (of three
partners also of the farthest, folded into the same tile), warpgroup 1 of the other. They exchange these, and their
parts of the row sums delta, through shared memory. Then warpgroup 0 sums dv; warpgroup 1 sums dk and makes dq. What
orders them:
  delta_full   both arrive when they have stored P and the sums, and wait. Warpgroup 1 arrives after its products with
               dS of the meeting before, so that both may store dS then; the sums have two buffers;
  slopes_full  warpgroup 0 has stored dS; warpgroup 1 waits;
  values_done  warpgroup 0 has left P, q, k, v and dy of this meeting; warpgroup 1 waits before it stores P or issues
               loads again, which it does for both.

Needs a device: accumulators that start from values, where interpret mode adds; speed.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_ROW, WGMMA, Mma, launch, rows_to
from pallas_kernels.sliding_window.mosaic_gpu_blocks import products, rows, transforms
from pallas_kernels.sliding_window.mosaic_gpu_layout import BLOCK
from pallas_kernels.sliding_window.mosaic_gpu_mask import HIDDEN, LOG2_E, Mask, make_mask
from pallas_kernels.sliding_window.mosaic_gpu_ring import Partners
from pallas_kernels.sliding_window.mosaic_gpu_task import SinglePass, Task


@dataclasses.dataclass(frozen=True)
class Warpgroup:
    """One of the two warpgroups of a thread block at its task."""

    number: int
    task: Task
    mask: Mask
    mma: Mma
    scale: np.float32

    @property
    def units(self):
        """Partners, the farthest first: the order of sums."""
        partners = self.mask.partners
        return sorted(range(partners.block_window.blocks), key=partners.distance, reverse=True)

    @property
    def own(self):
        """Partners whose P and dS this warpgroup computes, in one tile."""
        return (((0,), (1,)) if len(self.units) == 2 else ((0, 1), (2,)))[self.number]

    def key_tiles(self, ref, j, units):
        return [ref.at[self.task.key_slot(j - self.mask.partners.distance(u))] for u in units]

    def shared_tiles(self, ref, meeting):
        """P or dS by partner. Tiles take turns: the compiler would keep addresses that never change in registers."""
        count = jnp.int32(len(self.units))
        return [ref.at[lax.rem(meeting + u, count)] for u in range(len(self.units))]

    def weights(self, j, slot):
        """P of its own partners, and dP, (64, 64)."""
        r, n, mask = self.task.refs, self.task.query_block(j), self.mask
        exists = (n >= 0) & (n < self.task.problem.query_blocks)
        lse = plgpu.load(r.lse_s.at[slot], layout=PER_ROW, optimized=False) * LOG2_E
        lse = jnp.where(exists, lse, -HIDDEN)
        scores = products(*[(r.q_s.at[slot], tile.T) for tile in self.key_tiles(r.k_s, j, self.own)])
        pairs = zip(self.own, scores, strict=True)
        p = jnp.exp2(mask.fold([mask.exponents(s, self.scale * LOG2_E, n, u, lse) for u, s in pairs]))
        return p, mask.fold(products(*[(r.dy_s.at[slot], tile.T) for tile in self.key_tiles(r.v_s, j, self.own)]))

    def meet(self, j, member):
        """Stores P and dS of its own partners. Behind it P of all is there.

        Returns the slot of the queries, and the tiles of P and dS, by partner.
        """
        r, meeting = self.task.refs, self.task.meeting(j, member)
        slot, parity = self.task.query_slot(meeting), lax.rem(meeting, jnp.int32(2))
        p_s, ds_s = self.shared_tiles(r.p_s, meeting), self.shared_tiles(r.ds_s, meeting)
        self.task.wait_queries(meeting)
        p, dp = self.weights(j, slot)
        self.store(p_s, p)
        delta = (p * dp).sum(axis=1)
        r.delta_s.at[parity, self.number][...] = delta
        plgpu.commit_smem()
        plgpu.barrier_arrive(r.delta_full)
        plgpu.barrier_wait(r.delta_full)
        delta = delta + plgpu.load(r.delta_s.at[parity, 1 - self.number], layout=PER_ROW, optimized=False)
        self.store(ds_s, p * (dp - rows_to(delta)))
        plgpu.commit_smem()
        return slot, p_s, ds_s

    def store(self, tiles, x):
        """The parts of a tile that belong to its own partners."""
        for u, part in zip(self.own, self.mask.unfold(x, self.own), strict=True):
            tiles[u][...] = part

    def add_values(self, j, member, dvs):
        """Warpgroup 0: dv += P^T dy of each partner."""
        r = self.task.refs
        slot, p_s, _ = self.meet(j, member)
        plgpu.barrier_arrive(r.slopes_full)
        dvs = self.mma.update(dvs, self.sums(p_s, r.dy_s.at[slot]))
        plgpu.barrier_arrive(r.values_done)
        return dvs

    def add_keys(self, j, member, dks):
        """Warpgroup 1: dk += dS^T q of each partner, without the scale; and dq = scale dS k, which it writes."""
        task, r = self.task, self.task.refs
        task.load_later_queries(task.meeting(j, member))
        slot, _, ds_s = self.meet(j, member)
        plgpu.barrier_wait(r.slopes_full)

        def run(dq):
            for u, tile in zip(self.units, self.key_tiles(r.k_s, j, self.units), strict=True):
                plgpu.wgmma(dq, ds_s[u], tile)
            sums = self.mma.update(dks, self.sums(ds_s, r.q_s.at[slot]))  # waits for dq, too
            return dq[...], sums

        dq, dks = pl.run_scoped(run, plgpu.ACC((BLOCK, task.problem.d), jnp.float32))
        n = task.query_block(j)
        self.write(dq * self.scale, r.dq_s, r.dq, n, task.query_head(member), (n >= 0) & (j < task.end))
        plgpu.barrier_wait(r.values_done)
        return dks

    def sums(self, tiles, rows_s):
        """For `Mma.update`: adds tiles^T rows of each partner."""

        def add(*accs):
            for u, acc in zip(self.units, accs, strict=True):
                plgpu.wgmma(acc, tiles[u].T, rows_s)

        return add

    def write(self, value, staging, target, block, head, condition):
        """Writes (64, d) to a block of rows in global memory, on a condition."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staging[...] = value.astype(jnp.bfloat16)
        plgpu.commit_smem()

        @pl.when(condition)
        def _():
            plgpu.copy_smem_to_gmem(staging, target.at[self.task.batch, rows(block), head])

    def take_steps(self, add, staging, target, factor):
        """add(j, member, sums) in every meeting; writes factor * sums of each key block of the run when complete."""
        task = self.task
        zero = plgpu.layout_cast(jnp.zeros((BLOCK, task.problem.d), jnp.float32), WGMMA)

        def step(j, waiting):
            if self.number == 1:
                task.load_later_keys(j)
            task.wait_keys(j)
            sums = (*waiting, zero)
            if task.problem.group == 1:
                sums = add(j, 0, sums)
            else:
                sums = lax.fori_loop(0, task.problem.group, functools.partial(add, j), sums)
            farthest = j - len(waiting)
            self.write(sums[0] * factor, staging, target, farthest, task.head, farthest >= task.first)
            # Additions, for ptxas takes moves as reads of accumulators in flight, and serializes all matmuls (C7514).
            return tuple(x + np.float32(0) for x in sums[1:])

        for j in task.earlier():
            task.wait_keys(j)
        lax.fori_loop(task.first, task.stop, step, (zero,) * (len(self.units) - 1))
        plgpu.wait_smem_to_gmem(0)


def single_pass_scratch(problem, plan: SinglePass):
    """Shared memory of the kernel."""
    d, blocks, f32 = problem.d, problem.block_window.blocks, jnp.float32

    def tiles(*shape):
        """(..., 64, columns), all with the swizzle of (64, d), which both operands of a matmul have to share."""
        return plgpu.SMEM((*shape[:-1], BLOCK, shape[-1]), jnp.bfloat16, transforms=transforms(d))

    key_slots, query_slots = plan.key_slots(problem), plan.query_slots
    return {
        **{f"{name}_s": tiles(key_slots, d) for name in ("k", "v")},
        **{f"{name}_s": tiles(query_slots, d) for name in ("q", "dy")},
        **{f"{name}_s": tiles(blocks, BLOCK) for name in ("p", "ds")},
        **{f"{name}_s": tiles(d) for name in ("dq", "dk", "dv")},
        "lse_s": plgpu.SMEM((query_slots, BLOCK), f32),
        "delta_s": plgpu.SMEM((2, 2, BLOCK), f32),
        "keys_full": plgpu.Barrier(num_arrivals=2, num_barriers=key_slots),
        "queries_full": plgpu.Barrier(num_arrivals=3, num_barriers=query_slots),
        "delta_full": plgpu.Barrier(num_arrivals=2),
        "slopes_full": plgpu.Barrier(num_arrivals=1),
        "values_done": plgpu.Barrier(num_arrivals=1),
    }


def single_pass(q, k, v, start, segment_ids, lse, dy, *, problem, plan: SinglePass, scale, interpret):
    """dq (b, t padded, h, d), dk and dv (b, s padded, g, d), bf16.

    q, k, v, start, segment_ids from `kernel_operands`; dy like q; lse (b, h, t padded) float32.
    """

    def body(r):
        task = Task.of_block(problem, plan, r)
        partners = Partners(problem.block_window, -1, problem.past_blocks, problem.key_blocks)
        options = (task, make_mask(r, partners, task.batch), Mma(None if interpret is None else (), 0))
        values, keys = (Warpgroup(number, *options, np.float32(scale)) for number in range(2))

        @pl.when(lax.axis_index("warpgroup") == 0)
        def _():
            values.take_steps(values.add_values, r.dv_s, r.dv, np.float32(1))

        @pl.when(lax.axis_index("warpgroup") == 1)
        def _():
            task.start()
            keys.take_steps(keys.add_keys, r.dk_s, r.dk, keys.scale)

    return launch(
        "sliding_window_backward",
        body,
        {"q": q, "k": k, "v": v, "start": start, "segment_ids": segment_ids, "lse": lse, "dy": dy},
        {name: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for name, x in (("dq", q), ("dk", k), ("dv", v))},
        single_pass_scratch(problem, plan),
        grid={"b": problem.b, "block": problem.g * -(-problem.key_blocks // plan.run)},
        warpgroups=2,
        approx_math=True,
        interpret=interpret,
    )
