"""Inside the Hopper kernel of all gradients: its plan, and the run of key blocks that a thread block takes, with its
loads.

Geometry and legend: `mosaic_gpu_layout`; steps and meetings: `mosaic_gpu_single_pass`.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import multiprocessors
from pallas_kernels.sliding_window.mosaic_gpu_blocks import rows
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
    """How the kernel of all gradients works."""

    run: int  # key blocks of a thread block
    ahead: int  # steps that loads of keys are early; meetings that those of queries are

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
"""(Blocks that a query block meets, whether query heads share keys) -> columns whose sums two warpgroups hold in
registers, as found by compiling."""


def plan_single_pass(problem: Geometry, tuning: Tuning) -> SinglePass | None:
    """None where two kernels serve: a window of 1, where no sum waits, wider ones than 128, and wider heads."""
    window, blocks = problem.block_window.window, problem.block_window.blocks
    if not 2 <= window <= 2 * BLOCK or problem.d > WIDEST.get((blocks, problem.group > 1), 0):
        return None
    # A run's extra steps: those of later queries, and the wait for its first loads.
    run = tuning.run or choose_run(problem.b * problem.g, problem.key_blocks, multiprocessors(), extra=blocks)
    early = SinglePass(min(run, problem.key_blocks), ahead=2)
    return early if early.bytes(problem) <= SHARED_BYTES else dataclasses.replace(early, ahead=1)


@dataclasses.dataclass(frozen=True)
class Task:
    """Key blocks first, ..., end - 1 of one kv head; steps first, ..., stop - 1.

    Loads are issued `plan.ahead` steps, or meetings, early, by one warpgroup. Blocks that do not exist are loaded from
    the nearest that does, and masked where they are used.
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
        """Neighbours work on neighbouring heads, whose rows are side by side in memory."""
        number, heads = lax.axis_index("block"), jnp.int32(problem.g)
        first = lax.div(number, heads) * plan.run
        end = jnp.minimum(first + plan.run, problem.key_blocks)
        return cls(problem, plan, refs, lax.axis_index("b"), lax.rem(number, heads), first, end)

    @property
    def stop(self):
        """The queries of the steps from `end` on see keys before it."""
        return self.end + self.problem.block_window.blocks - 1

    def query_block(self, j):
        """Query block of step j; it may not exist."""
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
        """Issues the first loads: keys before the run, and those of the first steps and meetings."""
        for j in self.earlier():
            self.load_keys(j)
        for i in range(self.plan.ahead):
            pl.when(self.first + i < self.stop)(lambda i=i: self.load_keys(self.first + i))
            pl.when(i < self.meeting(self.stop))(lambda i=i: self.load_queries(jnp.int32(i)))

    def earlier(self):
        """Key blocks before the run that its first queries see."""
        return [self.first - distance for distance in range(self.problem.block_window.blocks - 1, 0, -1)]

    def load_later_keys(self, j):
        """Issues the load that may replace the keys that step j - 1 was the last to see."""
        later = j + self.plan.ahead
        pl.when(later < self.stop)(lambda: self.load_keys(later))

    def load_later_queries(self, meeting):
        """Issues the load that may replace the queries of the meeting before."""
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
