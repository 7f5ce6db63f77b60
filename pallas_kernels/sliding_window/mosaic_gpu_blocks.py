"""Inside the Hopper kernels: the launch, stationary blocks of warpgroups, and the ring of their partner blocks.

Warpgroups share nothing: each has its own stationary blocks and shared memory and issues its own TMA, and they hide
each other's waits. They form one thread block to limit the compiler's registers: 255 for two warpgroups, 168 for three,
128 for four. Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import PER_ROW, Mma, launch, sum_products
from pallas_kernels.sliding_window.mosaic_gpu_layout import BLOCK, BlockWindow, Geometry, Plan


def transforms(width):
    """Transforms of tiles for TMA and wgmma, which needs whole rows of the swizzle: 96 = 3 x 32, 112 = 7 x 16."""
    columns = next(n for n in (64, 32, 16) if width % n == 0)
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


def scratch_of(plan: Plan, width, *, stationary: int, results: int, ring, vectors=(), interpret):
    """Shared memory of a kernel: stationary_s, result_s if staged, the ring's NAME_s, and their barriers.

    vectors: names of (64,) stationary operands. ring: operands in tiles, each with the name of its (64,) operand or
    None. Interpret mode also has `stage`, for register operands of wgmma.
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
    """Products of pairs of shared-memory tiles, (64, 64) float32, all in flight together."""
    return sum_products(*([pair] for pair in pairs))


@dataclasses.dataclass(frozen=True)
class WorkTiles:
    """Task of a warpgroup: stationary blocks first, ..., end - 1; none if end <= first."""

    batch: Any
    head: Any
    first: Any
    end: Any
    warpgroup: Any

    @classmethod
    def of_warpgroup(cls, heads: int, stationary_blocks: int, plan: Plan):
        """Task of this warpgroup; neighbors work on neighboring heads, which are contiguous in memory."""
        warpgroup = lax.axis_index("warpgroup")
        number = lax.axis_index("block") * plan.warpgroups + warpgroup
        first = lax.div(number, jnp.int32(heads)) * plan.run
        end = jnp.minimum(first + plan.run, stationary_blocks)
        return cls(lax.axis_index("b"), lax.rem(number, jnp.int32(heads)), first, end, warpgroup)

    def mma(self, stage) -> Mma:
        return Mma(None if stage is None else (None, stage), self.warpgroup)


@dataclasses.dataclass(frozen=True)
class Stationary:
    """Operands and results of the stationary block: one tile each, reloaded as soon as it is free.

    Operands alternate between tiles from block to block: the compiler would keep constant addresses in registers.
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
        """Waits for the operands of block n, and returns them."""
        plgpu.barrier_wait(self.full())
        return [self.tile(n, i) for i in range(len(self.operands))]

    def vector(self, number):
        """A (64,) operand of the current block, by row."""
        return plgpu.load(self.vectors[number][1].at[self.work.warpgroup], layout=PER_ROW, optimized=False)

    def spent(self, n):
        """Called when every warp has read the operands of block n; reloads them unless `store` does."""
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


def launch_tasks(name, body, operands, outputs, scratch, *, batch, tasks, plan, interpret):
    """`launch` with enough thread blocks for the tasks of each batch row; refs.stage is None on a device."""
    return launch(
        name,
        body,
        {**operands, "stage": None},
        outputs,
        scratch,
        grid={"b": batch, "block": -(-tasks // plan.warpgroups)},
        warpgroups=plan.warpgroups,
        approx_math=True,
        auto_barriers=True,
        interpret=interpret,
    )


@dataclasses.dataclass(frozen=True)
class Partners:
    """Partners of a stationary block: u = 0 (diagonal), 1 (farthest), 2, ... (between, from near to far)."""

    block_window: BlockWindow
    direction: int  # partners of stationary block n: n + shift + direction * {0, 1, ...}
    shift: int
    limit: int  # partners exist in [0, limit); loads of others are clamped, and masked at their use

    def distance(self, u):
        """Distance of partner u from the diagonal, in blocks."""
        if isinstance(u, int):
            return (0, self.block_window.blocks - 1)[u] if u < 2 else u - 1
        return jnp.where(u == 0, 0, jnp.where(u == 1, self.block_window.blocks - 1, u - 1))

    def partner(self, n, u):
        """Index of a partner, which may not exist."""
        return n + self.shift + self.direction * self.distance(u)

    def existing(self, n, u):
        return jnp.clip(self.partner(n, u), 0, self.limit - 1)


@dataclasses.dataclass(frozen=True)
class Ring(Partners):
    """Partner blocks in shared memory. A visit (n, member, u) uses partner u for stationary block n and a member of its
    group; visits are in order of u.

    Kept: the slot of a partner is its index modulo the slots, and a load replaces the partner that leaves the window;
    with one more slot than partners, the load is one stationary block early. Streamed: visits are numbered, and a load
    is replaced by the one `slots` visits later.
    """

    work: WorkTiles
    plan: Plan
    members: int  # of a group, processed in turn; 1 if kept
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
        """Partners of the first step: all if kept, else the two that may share a tile of scores."""
        return tuple(range(self.block_window.blocks if self.plan.kept else min(2, self.block_window.blocks)))

    def rest(self, visit, carry):
        """Folds visit(u, carry) over the other partners; a partner at the edge of the window comes last, after a loop
        without masks."""
        first, last = len(self.first_units), self.block_window.blocks
        cut = first < last and self.block_window.cuts(self.distance(last - 1))
        if first < last - cut:
            carry = lax.fori_loop(first, last - cut, visit, carry)
        return visit(last - 1, carry) if cut else carry

    @property
    def newest(self):
        """Partner that the previous stationary block did not use."""
        return 0 if self.direction < 0 or self.block_window.blocks == 1 else 1

    @property
    def oldest(self):
        """Partner that the next stationary block does not use."""
        return 0 if self.direction > 0 or self.block_window.blocks == 1 else 1

    def start(self):
        """Issues the first loads. Kept: waits for all but the newest partner."""

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
        """Kept: loads the partner that stationary block n is the first to use, if block n exists."""

        @pl.when(n < self.work.end)
        def _():
            self.load(name, n, 0, self.newest)

    def wait(self, name, n, member, units):
        for u in set(units) & {self.newest} if self.plan.kept else units:
            plgpu.barrier_wait(self.full[name].at[self.slot(name, n, member, u)])

    def spent(self, name, n, member, units):
        """Called when every warp has read these partners for stationary block n and this member."""
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
    """Calls step(n, _) for every stationary block n."""

    @pl.when(work.first < work.end)
    def _():
        stationary.issue(work.first)
        ring.start()
        lax.fori_loop(work.first, work.end, step, None)
        plgpu.wait_smem_to_gmem(0)


def key_ring(refs, work: WorkTiles, plan: Plan, problem: Geometry) -> Ring:
    """Ring of the key blocks for query blocks, from refs.k and refs.v."""
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
