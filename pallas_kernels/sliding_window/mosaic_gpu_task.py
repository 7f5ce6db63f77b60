"""Inside the Hopper kernel of all gradients: the run of key blocks that a thread block takes, and its loads.

Geometry and legend: `mosaic_gpu_layout`; steps and visits: `mosaic_gpu_single_pass`.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.sliding_window.mosaic_gpu_blocks import rows
from pallas_kernels.sliding_window.mosaic_gpu_layout import Geometry, SinglePass


@dataclasses.dataclass(frozen=True)
class Task:
    """Key blocks first, ..., end - 1 of one kv head; steps first, ..., stop - 1.

    Loads are issued `plan.ahead` steps, or visits, early, by one warpgroup. Blocks that do not exist are loaded from
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
        """Of step j; it may not exist."""
        return j - self.problem.past_blocks

    def query_head(self, member):
        return self.head * self.problem.group + member

    def visit(self, j, member=0):
        return (j - self.first) * self.problem.group + member

    def key_slot(self, j):
        slots = self.plan.key_slots(self.problem)
        return lax.rem(j + slots, jnp.int32(slots))  # j may be negative before the first key

    def query_slot(self, visit):
        return lax.rem(visit, jnp.int32(self.plan.query_slots))

    def start(self):
        """Issues the first loads: keys before the run, and those of the first steps and visits."""
        for j in self.earlier():
            self.load_keys(j)
        for i in range(self.plan.ahead):
            pl.when(self.first + i < self.stop)(lambda i=i: self.load_keys(self.first + i))
            pl.when(i < self.visit(self.stop))(lambda i=i: self.load_queries(jnp.int32(i)))

    def earlier(self):
        """Key blocks before the run that its first queries see."""
        return [self.first - distance for distance in range(self.problem.block_window.blocks - 1, 0, -1)]

    def load_later_keys(self, j):
        """Issues the load that may replace the keys that step j - 1 was the last to see."""
        later = j + self.plan.ahead
        pl.when(later < self.stop)(lambda: self.load_keys(later))

    def load_later_queries(self, visit):
        """Issues the load that may replace the queries of the visit before."""
        later = visit + self.plan.ahead
        pl.when(later < self.visit(self.stop))(lambda: self.load_queries(later))

    def load_keys(self, j):
        """Issues the loads of k and v of a block."""
        r, slot, block = self.refs, self.key_slot(j), rows(jnp.clip(j, 0, self.problem.key_blocks - 1))
        for source, tiles in ((r.k, r.k_s), (r.v, r.v_s)):
            plgpu.copy_gmem_to_smem(source.at[self.batch, block, self.head], tiles.at[slot], r.keys_full.at[slot])

    def load_queries(self, visit):
        """Issues the loads of q, dy and lse of a visit."""
        r, slot, group = self.refs, self.query_slot(visit), jnp.int32(self.problem.group)
        n = self.query_block(self.first + lax.div(visit, group))
        block, head = rows(jnp.clip(n, 0, self.problem.query_blocks - 1)), self.query_head(lax.rem(visit, group))
        full = r.queries_full.at[slot]
        for source, tiles in ((r.q, r.q_s), (r.dy, r.dy_s)):
            plgpu.copy_gmem_to_smem(source.at[self.batch, block, head], tiles.at[slot], full)
        plgpu.copy_gmem_to_smem(r.lse.at[self.batch, head, block], r.lse_s.at[slot], full)

    def wait_keys(self, j):
        plgpu.barrier_wait(self.refs.keys_full.at[self.key_slot(j)])

    def wait_queries(self, visit):
        plgpu.barrier_wait(self.refs.queries_full.at[self.query_slot(visit)])
