"""Inside the Hopper kernels: the ring of partner blocks in shared memory, and the loop over stationary blocks.

Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.sliding_window.mosaic_gpu_blocks import Stationary, WorkTiles, rows
from pallas_kernels.sliding_window.mosaic_gpu_layout import BlockWindow, Geometry, Plan


@dataclasses.dataclass(frozen=True)
class Partners:
    """Which blocks a stationary block meets: partner u = 0 (diagonal), 1 (farthest), 2, ... (between, from near to
    far)."""

    block_window: BlockWindow
    direction: int  # partners of stationary block n: n + shift + direction * {0, 1, ...}
    shift: int
    limit: int  # partners exist in [0, limit); the loads of others are clamped, and masked where they are used

    def distance(self, u):
        """Blocks between the diagonal and partner u."""
        if isinstance(u, int):
            return (0, self.block_window.blocks - 1)[u] if u < 2 else u - 1
        return jnp.where(u == 0, 0, jnp.where(u == 1, self.block_window.blocks - 1, u - 1))

    def partner(self, n, u):
        """Index of a partner; it may not exist."""
        return n + self.shift + self.direction * self.distance(u)

    def existing(self, n, u):
        return jnp.clip(self.partner(n, u), 0, self.limit - 1)


@dataclasses.dataclass(frozen=True)
class Ring(Partners):
    """Partner blocks in shared memory. A visit (n, member, u) is the meeting of stationary block n with partner u for a
    member of its group.

    Visits of one stationary block and member come in the order of u. Kept: slot of a partner is its index modulo the
    slots, and one load replaces the partner that leaves the window; where an operand has a slot more than partners, the
    load is one stationary block early. Streamed: visits are numbered, and each load is replaced by that of `slots`
    visits later.
    """

    work: WorkTiles
    plan: Plan
    members: int  # of a group, met one after another; 1 where kept
    loads: dict[str, tuple[tuple[Callable, Any], ...]]  # name -> (partner block, member -> global memory, slots)
    full: dict[str, Any]  # name -> barriers of the slots

    def number(self, n, member, u):
        return ((n - self.work.first) * self.members + member) * self.block_window.blocks + u

    @property
    def visits(self):
        return (self.work.end - self.work.first) * self.members * self.block_window.blocks

    def slots(self, name):
        return self.plan.ring_slots(list(self.loads).index(name))

    def slot(self, name, n, member, u):
        number = self.number(n, member, u)
        if self.plan.kept:
            number = n + self.direction * self.distance(u) + self.block_window.blocks
        slots = self.slots(name)
        return self.work.warpgroup * slots + lax.rem(number, jnp.int32(slots))

    def load(self, name, n, member, u):
        slot, block = self.slot(name, n, member, u), self.existing(n, u)
        for source, smem in self.loads[name]:
            plgpu.copy_gmem_to_smem(source(block, member), smem.at[slot], self.full[name].at[slot])

    def load_number(self, name, number):
        blocks, per_block = jnp.int32(self.block_window.blocks), jnp.int32(self.members * self.block_window.blocks)
        within = lax.rem(number, per_block)
        n = self.work.first + lax.div(number, per_block)
        self.load(name, n, lax.div(within, blocks), lax.rem(within, blocks))

    @property
    def first_units(self):
        """Partners that are met together: all that are kept, else the two that may share a tile of scores."""
        return tuple(range(self.block_window.blocks if self.plan.kept else min(2, self.block_window.blocks)))

    def rest(self, visit, carry):
        """Folds visit(u, carry) over the partners after the first ones.

        The one that the far edge of the window cuts comes last, by itself: the loop over the others has no mask.
        """
        first, last = len(self.first_units), self.block_window.blocks
        cut = first < last and self.block_window.cuts(self.distance(last - 1))
        if first < last - cut:
            carry = lax.fori_loop(first, last - cut, visit, carry)
        return visit(last - 1, carry) if cut else carry

    @property
    def newest(self):
        """The partner that the stationary block before did not meet."""
        return 0 if self.direction < 0 or self.block_window.blocks == 1 else 1

    @property
    def oldest(self):
        """The partner that the next stationary block does not meet."""
        return 0 if self.direction > 0 or self.block_window.blocks == 1 else 1

    def start(self):
        """Issues the first loads. Kept: waits for all but the newest partner, for which every visit waits."""

        def issue(i, _):
            @pl.when(i < self.visits)
            def _():
                for name in self.loads:
                    self.load_number(name, i)

        lax.fori_loop(0, self.plan.slots, issue, None)
        if self.plan.kept:
            for name in self.loads:
                if self.slots(name) > self.plan.slots:
                    self.load_newest(name, self.work.first + 1)
            for name in self.loads:
                for u in set(range(self.block_window.blocks)) - {self.newest}:
                    plgpu.barrier_wait(self.full[name].at[self.slot(name, self.work.first, 0, u)])

    def load_newest(self, name, n):
        """Kept: issues the load of the partner that stationary block n is the first to meet, if there is block n."""

        @pl.when(n < self.work.end)
        def _():
            self.load(name, n, 0, self.newest)

    def wait(self, name, n, member, units):
        for u in set(units) & {self.newest} if self.plan.kept else units:
            plgpu.barrier_wait(self.full[name].at[self.slot(name, n, member, u)])

    def spent(self, name, n, member, units):
        """Every warp has read these partners for the last time in the visits of stationary block n and this member."""
        if self.plan.kept:
            if self.oldest in units:
                self.load_newest(name, n + 1 + self.slots(name) - self.plan.slots)
            return
        for u in units:
            later = self.number(n, member, u) + self.plan.slots

            @pl.when(later < self.visits)
            def _(later=later):
                self.load_number(name, later)


def run_tiles(work: WorkTiles, stationary: Stationary, ring: Ring, step):
    """step(n, _) for every stationary block n."""

    @pl.when(work.first < work.end)
    def _():
        stationary.issue(work.first)
        ring.start()
        lax.fori_loop(work.first, work.end, step, None)
        plgpu.wait_smem_to_gmem(0)


def key_ring(refs, work: WorkTiles, plan: Plan, problem: Geometry) -> Ring:
    """The key blocks that query blocks meet, from refs.k and refs.v."""
    head = work.head // problem.group

    def load(ref, smem):
        return ((lambda block, member: ref.at[work.batch, rows(block), head], smem),)

    return Ring(
        work=work,
        plan=plan,
        block_window=problem.block_window,
        members=1,
        direction=-1,
        shift=problem.past_blocks,
        limit=problem.key_blocks,
        loads={"k": load(refs.k, refs.k_s), "v": load(refs.v, refs.v_s)},
        full={"k": refs.k_full, "v": refs.v_full},
    )
