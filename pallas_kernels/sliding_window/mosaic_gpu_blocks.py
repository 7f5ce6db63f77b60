"""Inside the Hopper kernels: the launch, stationary blocks of warpgroups, and the ring of their partner blocks.

The warpgroups of a thread block share nothing: each has its own stationary blocks in its own shared memory and issues
its own TMA, and they hide each other's waits. They are one thread block, not several, because that is what bounds the
registers that the compiler takes for each: 255 for two warpgroups, 168 for three, 128 for four.
Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import PER_ROW, Mma, launch
from pallas_kernels.sliding_window.mosaic_gpu_layout import BLOCK, BlockWindow, Geometry, Plan

# ---------------------------------------------------------------- shared memory


def transforms(width):
    """Transforms of tiles for TMA and wgmma, which wants whole rows of the swizzle: 96 = 3 x 32, 112 = 7 x 16."""
    columns = next(n for n in (64, 32, 16) if width % n == 0)
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


def scratch_of(plan: Plan, width, *, stationary: int, results: int, ring, vectors=(), interpret):
    """Shared memory of a kernel: stationary_s, result_s where staged, the ring's NAME_s, and their barriers.

    stationary, results: how many stationary operands and results there are. vectors: names of the (64,) operands that
    come with the stationary ones, in NAME_s. ring: its operands in tiles, each with the (64,) operand that comes with
    it, or None. In interpret mode also `stage`, through which register operands of wgmma pass, with the swizzle of
    their partner.
    """

    def tiles(count, columns=width):
        return plgpu.SMEM((count, BLOCK, columns), jnp.bfloat16, transforms=transforms(width))

    scratch = {
        "stationary_s": tiles(plan.warpgroups * stationary),
        "stationary_full": plgpu.Barrier(num_arrivals=stationary + len(vectors), num_barriers=plan.warpgroups),
    }
    for name in vectors:
        scratch[f"{name}_s"] = plgpu.SMEM((plan.warpgroups, BLOCK), jnp.float32)
    if plan.staged:
        scratch["result_s"] = tiles(plan.warpgroups * results)
    for i, (name, vector) in enumerate(ring.items()):
        in_ring = plan.warpgroups * plan.ring_slots(i)
        scratch[f"{name}_s"] = tiles(in_ring)
        scratch[f"{name}_full"] = plgpu.Barrier(num_arrivals=1 if vector is None else 2, num_barriers=in_ring)
        if vector is not None:
            scratch[f"{vector}_s"] = plgpu.SMEM((in_ring, BLOCK), jnp.float32)
    if interpret is not None:
        scratch["stage"] = tiles(plan.warpgroups, BLOCK)
    return scratch


def products(*pairs):
    """[a @ b for a, b in pairs] of shared-memory tiles, (64, 64) float32, all in flight before the first is read."""

    def run(*accs):
        for acc, (a, b) in zip(accs, pairs, strict=True):
            plgpu.wgmma(acc, a, b)
        return [acc[...] for acc in accs]

    return pl.run_scoped(run, *[plgpu.ACC((BLOCK, BLOCK), jnp.float32)] * len(pairs))


# ---------------------------------------------------------------- blocks in flight


@dataclasses.dataclass(frozen=True)
class WorkTiles:
    """The stationary blocks of one warpgroup, its task: first, first + 1, ..., end - 1; none where end <= first."""

    batch: Any
    head: Any
    first: Any
    end: Any
    warpgroup: Any

    @classmethod
    def of_warpgroup(cls, heads: int, stationary_blocks: int, plan: Plan):
        """Neighbours work on neighbouring heads, whose rows are side by side in memory."""
        warpgroup = lax.axis_index("warpgroup")
        number = lax.axis_index("block") * plan.warpgroups + warpgroup
        first = lax.div(number, jnp.int32(heads)) * plan.run
        end = jnp.minimum(first + plan.run, stationary_blocks)
        return cls(lax.axis_index("b"), lax.rem(number, jnp.int32(heads)), first, end, warpgroup)

    def mma(self, stage) -> Mma:
        return Mma(None if stage is None else (None, stage), self.warpgroup)


@dataclasses.dataclass(frozen=True)
class Stationary:
    """Operands and results of the stationary block: one tile each, loaded again as soon as nobody needs it.

    The operands take turns in their tiles from block to block. The addresses of a matmul operand would otherwise be the
    same in every step, and the compiler would keep them in registers, some thirty, at the price of spills.
    """

    work: WorkTiles
    plan: Plan
    operands: tuple[Any, ...]  # (b, rows, heads, d) in global memory
    refs: Any  # with stationary_s, result_s, stationary_full
    vectors: tuple[tuple[Any, Any], ...] = ()  # (b, heads, rows) float32 in global memory, and (warpgroups, 64) tiles

    def tile(self, n, number):
        count = len(self.operands)
        return self.refs.stationary_s.at[self.work.warpgroup * count + lax.rem(n + number, jnp.int32(count))]

    def results(self, n, count):
        if not self.plan.staged:
            return [self.tile(n, i) for i in range(count)]
        return [self.refs.result_s.at[self.work.warpgroup * count + i] for i in range(count)]

    def full(self):
        return self.refs.stationary_full.at[self.work.warpgroup]

    def issue(self, n):
        for number, source in enumerate(self.operands):
            block = source.at[self.work.batch, rows(n), self.work.head]
            plgpu.copy_gmem_to_smem(block, self.tile(n, number), self.full())
        for source, smem in self.vectors:
            block = source.at[self.work.batch, self.work.head, rows(n)]
            plgpu.copy_gmem_to_smem(block, smem.at[self.work.warpgroup], self.full())

    def wait(self, n):
        """The operands of block n."""
        plgpu.barrier_wait(self.full())
        return [self.tile(n, i) for i in range(len(self.operands))]

    def vector(self, number):
        """(64,) of the block that was waited for, by row."""
        return plgpu.load(self.vectors[number][1].at[self.work.warpgroup], layout=PER_ROW, optimized=False)

    def spent(self, n):
        """Every warp has read the operands of block n. Without tiles for results they are loaded again by `store`."""
        if self.plan.staged:
            self.reload(n)

    def store(self, n, values, targets):
        """Writes (64, d) values to the rows of block n in the targets in global memory."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staging = self.results(n, len(targets))
        for value, smem in zip(values, staging, strict=True):
            smem[...] = value.astype(jnp.bfloat16)
        plgpu.commit_smem()
        for smem, target in zip(staging, targets, strict=True):
            plgpu.copy_smem_to_gmem(smem, target.at[self.work.batch, rows(n), self.work.head])
        if not self.plan.staged:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            self.reload(n)

    def reload(self, n):
        @pl.when(n + 1 < self.work.end)
        def _():
            self.issue(n + 1)


def rows(n):
    return pl.ds(n * BLOCK, BLOCK)


# ---------------------------------------------------------------- launching


def launch_tasks(name, body, operands, outputs, scratch, *, batch, tasks, plan, interpret):
    """`launch` with as many thread blocks as the tasks of each batch row need; refs.stage is None on a device."""
    return launch(
        name,
        body,
        {**operands, "stage": None},
        outputs,
        scratch,
        grid={"b": batch, "block": -(-tasks // plan.warpgroups)},
        warpgroups=plan.warpgroups,
        approx_math=True,
        interpret=interpret,
    )


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
