"""Gradients of sliding-window attention on Hopper in one pass: one Mosaic GPU kernel, no atomics.

Equations: `mosaic_gpu_vjp`. A thread block processes a run of key blocks of one kv head. Step j pairs the queries of
key block j with all key blocks that they see: one meeting for every query head that shares the kv head. After a step,
dk and dv of the farthest key block are complete; the sums of the others stay in registers for later queries. A run ends
with the steps of later queries that see its last keys. Runs share no sums: results do not depend on the run length.

Two warpgroups share a meeting. Each computes P and dS of its own partners: warpgroup 0 of the diagonal (of three
partners also of the farthest, folded into the same tile), warpgroup 1 of the other. They exchange these, and their
parts of the row sums delta, through shared memory. Then warpgroup 0 sums dv; warpgroup 1 sums dk and computes dq.
Barriers:
  delta_full   both arrive after storing P and the sums, and wait. Warpgroup 1 arrives after its products with dS of the
               previous meeting, so both may store dS then; the sums have two buffers;
  slopes_full  warpgroup 0 has stored dS; warpgroup 1 waits;
  values_done  warpgroup 0 has left P, q, k, v and dy of this meeting; warpgroup 1 waits before it stores P or issues
               loads for both.

Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import multiprocessors
from pallas_kernels.hopper.tiles import PER_ROW, WGMMA, Mma, launch, rows_to
from pallas_kernels.sliding_window.mosaic_gpu import HIDDEN, LOG2_E, Mask, make_mask
from pallas_kernels.sliding_window.mosaic_gpu_blocks import Partners, products, rows, transforms
from pallas_kernels.sliding_window.mosaic_gpu_layout import (
    BARRIER_BYTES,
    BLOCK,
    SHARED_BYTES,
    VECTOR_BYTES,
    Geometry,
    Tuning,
    choose_run,
)


@dataclasses.dataclass(frozen=True)
class SinglePass:
    """Plan of the kernel of all gradients."""

    run: int  # key blocks of a thread block
    ahead: int  # loads of keys run so many steps ahead, loads of queries so many meetings

    def key_slots(self, problem: Geometry) -> int:
        return problem.block_window.blocks + self.ahead

    @property
    def query_slots(self) -> int:
        return 1 + self.ahead

    def bytes(self, problem: Geometry) -> int:
        """Bytes of shared memory: k and v; q and dy; dq, dk and dv; P and dS; vectors and barriers, Pallas' own too."""
        tiles = 2 * self.key_slots(problem) + 2 * self.query_slots + 3
        squares = 2 * problem.block_window.blocks
        return 2 * BLOCK * (tiles * problem.d + squares * BLOCK) + VECTOR_BYTES + BARRIER_BYTES


WIDEST = {(2, False): 112, (2, True): 64, (3, False): 80}
"""(Key blocks of a query block, whether query heads share keys) -> columns whose sums fit in the registers of two
warpgroups, found by compiling."""


def plan_single_pass(problem: Geometry, tuning: Tuning) -> SinglePass | None:
    """Plan, or None if two kernels are needed: for a window of 1 or more than 128, and for wide heads."""
    window, blocks = problem.block_window.window, problem.block_window.blocks
    if not 2 <= window <= 2 * BLOCK or problem.d > WIDEST.get((blocks, problem.group > 1), 0):
        return None
    # Extra steps of a run: later queries, and the wait for its first loads.
    run = tuning.run or choose_run(problem.b * problem.g, problem.key_blocks, multiprocessors(), extra=blocks)
    early = SinglePass(min(run, problem.key_blocks), ahead=2)
    return early if early.bytes(problem) <= SHARED_BYTES else dataclasses.replace(early, ahead=1)


@dataclasses.dataclass(frozen=True)
class Task:
    """Key blocks first, ..., end - 1 of one kv head; steps first, ..., stop - 1.

    One warpgroup issues loads `plan.ahead` steps or meetings ahead. Loads of blocks that do not exist are clamped, and
    masked at their use.
    """

    problem: Geometry
    plan: SinglePass
    refs: Any  # arrays in global memory, their NAME_s in shared memory, keys_full and queries_full
    batch: Any
    head: Any  # of keys and values
    first: Any
    end: Any

    @classmethod
    def of_block(cls, problem: Geometry, plan: SinglePass, refs):
        """Task of this thread block; neighbors work on neighboring heads, which are contiguous in memory."""
        number, heads = lax.axis_index("block"), jnp.int32(problem.g)
        first = lax.div(number, heads) * plan.run
        end = jnp.minimum(first + plan.run, problem.key_blocks)
        return cls(problem, plan, refs, lax.axis_index("b"), lax.rem(number, heads), first, end)

    @property
    def stop(self):
        """End of the steps; queries of the steps from `end` on see keys before it."""
        return self.end + self.problem.block_window.blocks - 1

    def query_block(self, j):
        """Query block of step j, which may not exist."""
        return j - self.problem.past_blocks

    def query_head(self, member):
        return self.head * self.problem.group + member

    def meeting(self, j, member=0):
        return (j - self.first) * self.problem.group + member

    def key_slot(self, j):
        slots = self.plan.key_slots(self.problem)
        return lax.rem(j + slots, jnp.int32(slots))  # j may be negative before the first key

    def query_slot(self, meeting):
        return lax.rem(meeting, jnp.int32(self.plan.query_slots))

    def start(self):
        """Issues the first loads: keys before the run, and of the first steps and meetings."""
        for j in self.earlier():
            self.load_keys(j)
        for i in range(self.plan.ahead):
            pl.when(self.first + i < self.stop)(lambda i=i: self.load_keys(self.first + i))
            pl.when(i < self.meeting(self.stop))(lambda i=i: self.load_queries(jnp.int32(i)))

    def earlier(self):
        """Key blocks before the run that its first queries see."""
        return [self.first - distance for distance in range(self.problem.block_window.blocks - 1, 0, -1)]

    def load_later_keys(self, j):
        """Issues the load that replaces the keys last used by step j - 1."""
        later = j + self.plan.ahead
        pl.when(later < self.stop)(lambda: self.load_keys(later))

    def load_later_queries(self, meeting):
        """Issues the load that replaces the queries of the previous meeting."""
        later = meeting + self.plan.ahead
        pl.when(later < self.meeting(self.stop))(lambda: self.load_queries(later))

    def load_keys(self, j):
        """Issues the loads of k and v of a block."""
        r, slot, block = self.refs, self.key_slot(j), rows(jnp.clip(j, 0, self.problem.key_blocks - 1))
        for source, tiles in ((r.k, r.k_s), (r.v, r.v_s)):
            plgpu.copy_gmem_to_smem(source.at[self.batch, block, self.head], tiles.at[slot], r.keys_full.at[slot])

    def load_queries(self, meeting):
        """Issues the loads of q, dy and lse of a meeting."""
        r, slot, group = self.refs, self.query_slot(meeting), jnp.int32(self.problem.group)
        n = self.query_block(self.first + lax.div(meeting, group))
        block, head = rows(jnp.clip(n, 0, self.problem.query_blocks - 1)), self.query_head(lax.rem(meeting, group))
        full = r.queries_full.at[slot]
        for source, tiles in ((r.q, r.q_s), (r.dy, r.dy_s)):
            plgpu.copy_gmem_to_smem(source.at[self.batch, block, head], tiles.at[slot], full)
        plgpu.copy_gmem_to_smem(r.lse.at[self.batch, head, block], r.lse_s.at[slot], full)

    def wait_keys(self, j):
        plgpu.barrier_wait(self.refs.keys_full.at[self.key_slot(j)])

    def wait_queries(self, meeting):
        plgpu.barrier_wait(self.refs.queries_full.at[self.query_slot(meeting)])


@dataclasses.dataclass(frozen=True)
class Warpgroup:
    """One of the two warpgroups of a thread block."""

    number: int
    task: Task
    mask: Mask
    mma: Mma
    scale: np.float32

    @property
    def units(self):
        """Partners, farthest first: the order of sums."""
        partners = self.mask.partners
        return sorted(range(partners.block_window.blocks), key=partners.distance, reverse=True)

    @property
    def own(self):
        """Partners whose P and dS this warpgroup computes, in one tile."""
        return (((0,), (1,)) if len(self.units) == 2 else ((0, 1), (2,)))[self.number]

    def key_tiles(self, ref, j, units):
        return [ref.at[self.task.key_slot(j - self.mask.partners.distance(u))] for u in units]

    def shared_tiles(self, ref, meeting):
        """P or dS by partner. Tiles alternate: the compiler would keep constant addresses in registers."""
        count = jnp.int32(len(self.units))
        return [ref.at[lax.rem(meeting + u, count)] for u in range(len(self.units))]

    def weights(self, j, slot):
        """P and dP of its own partners, (64, 64)."""
        r, n, mask = self.task.refs, self.task.query_block(j), self.mask
        exists = (n >= 0) & (n < self.task.problem.query_blocks)
        lse = plgpu.load(r.lse_s.at[slot], layout=PER_ROW, optimized=False) * LOG2_E
        lse = jnp.where(exists, lse, -HIDDEN)
        scores = products(*[(r.q_s.at[slot], tile.T) for tile in self.key_tiles(r.k_s, j, self.own)])
        pairs = zip(self.own, scores, strict=True)
        p = jnp.exp2(mask.fold([mask.exponents(s, self.scale * LOG2_E, n, u, lse) for u, s in pairs]))
        return p, mask.fold(products(*[(r.dy_s.at[slot], tile.T) for tile in self.key_tiles(r.v_s, j, self.own)]))

    def meet(self, j, member):
        """Stores P and dS of its own partners; afterwards P of all partners is stored.

        Returns the slot of the queries, and the tiles of P and dS by partner.
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
        """Stores the parts of a tile for each of its own partners."""
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
        """Warpgroup 1: dk += dS^T q of each partner, without the scale; writes dq = scale dS k."""
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
        """Function for `Mma.update` that adds tiles^T rows of each partner."""

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
        """Calls add(j, member, sums) in every meeting; writes factor * sums of each complete key block of the run."""
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
            # Additions: ptxas mistakes moves for reads of accumulators in flight, and serializes all matmuls (C7514).
            return tuple(x + np.float32(0) for x in sums[1:])

        for j in task.earlier():
            task.wait_keys(j)
        lax.fori_loop(task.first, task.stop, step, (zero,) * (len(self.units) - 1))
        plgpu.wait_smem_to_gmem(0)


def single_pass_scratch(problem, plan: SinglePass):
    """Shared memory of the kernel."""
    d, blocks, f32 = problem.d, problem.block_window.blocks, jnp.float32

    def tiles(*shape):
        """(..., 64, columns) tiles with the swizzle of (64, d), which both operands of a matmul must share."""
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
    """dq, dk and dv, padded, bf16; q, k, v, start, segment_ids from `kernel_operands`; dy like q; lse float32."""

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
        auto_barriers=True,
        interpret=interpret,
    )
