"""Inside the Hopper kernels: shared-memory rings, masks, and the launch.

The warpgroups of a thread block share nothing: each walks its own home blocks in its own shared memory and issues its
own TMA, and they hide each other's waits. They are one thread block, not several, because that is what bounds the
registers that the compiler takes for each: 255 for two warpgroups, 168 for three, 128 for four.
Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.sliding_window.mosaic_gpu_layout import BLOCK, Band, Plan
from pallas_kernels.taylor_attention.mosaic_gpu_state import PER_COLUMN, PER_ROW, Mma, columns_to, iota, rows_to

LOG2_E = np.float32(np.log2(np.e))
LN_2 = np.float32(np.log(2))


# ---------------------------------------------------------------- shared memory


def transforms(width):
    """Tiles that TMA fills and wgmma reads. A contraction over `width` wants whole swizzle rows: 96 = 3 x 32, 112 = 7 x
    16."""
    columns = next(n for n in (64, 32, 16) if width % n == 0)
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


def tiles(count, width):
    return plgpu.SMEM((count, BLOCK, width), jnp.bfloat16, transforms=transforms(width))


def vectors(count):
    return plgpu.SMEM((count, BLOCK), jnp.float32)


def staging_scratch(interpret, plan, width):
    """Tiles through which register operands of wgmma pass in interpret mode, with the swizzle of their partner, which
    has `width` columns."""
    if interpret is None:
        return {}
    shape = (plan.warpgroups, BLOCK, BLOCK)
    return {"stage": plgpu.SMEM(shape, jnp.bfloat16, transforms=transforms(width))}


def products(*pairs):
    """[a @ b for a, b in pairs] of shared-memory tiles, (64, 64) float32, all in flight before the first is read."""

    def run(*accs):
        for acc, (a, b) in zip(accs, pairs, strict=True):
            plgpu.wgmma(acc, a, b)
        return [acc[...] for acc in accs]

    return pl.run_scoped(run, *[plgpu.ACC((BLOCK, BLOCK), jnp.float32)] * len(pairs))


# ---------------------------------------------------------------- blocks in flight


@dataclasses.dataclass(frozen=True)
class Walk:
    """The home blocks of one warpgroup: first, first + 1, ..., end - 1; none where end <= first."""

    batch: Any
    head: Any
    first: Any
    end: Any
    warpgroup: Any

    @classmethod
    def here(cls, heads: int, home_blocks: int, plan: Plan):
        """Neighbours work on neighbouring heads, whose rows are side by side in memory."""
        warpgroup = lax.axis_index("warpgroup")
        number = lax.axis_index("block") * plan.warpgroups + warpgroup
        first = lax.div(number, jnp.int32(heads)) * plan.run
        end = jnp.minimum(first + plan.run, home_blocks)
        return cls(lax.axis_index("b"), lax.rem(number, jnp.int32(heads)), first, end, warpgroup)

    def mma(self, stage) -> Mma:
        return Mma(None if stage is None else (None, stage), self.warpgroup)


@dataclasses.dataclass(frozen=True)
class Home:
    """Operands of the home block; one slot, loaded again as soon as nobody needs it."""

    walk: Walk
    plan: Plan
    loads: tuple[tuple[Callable, Any], ...]  # (home block -> global memory, shared memory by warpgroup)
    full: Any

    def issue(self, n):
        mine = self.walk.warpgroup
        for source, smem in self.loads:
            plgpu.copy_gmem_to_smem(source(n), smem.at[mine], self.full.at[mine])

    def wait(self):
        plgpu.barrier_wait(self.full.at[self.walk.warpgroup])

    def spent(self, n):
        """Every warp has read the operands of block n; results do not take their place."""
        if self.plan.staged:
            self.reload(n)

    def stored(self, n):
        """The results of block n that took the place of the operands are on their way."""
        if not self.plan.staged:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            self.reload(n)

    def reload(self, n):
        @pl.when(n + 1 < self.walk.end)
        def _():
            self.issue(n + 1)


@dataclasses.dataclass(frozen=True)
class Ring:
    """Partner blocks. A visit (n, member, u) is the meeting of home block n with partner u for a member of its group.

    Visits of one home block and member come in the order u = 0 (diagonal), 1 (farthest), 2, ... (between, from near to
    far). Kept: slot of a partner is its index modulo `slots`, and one load replaces the partner that leaves the band.
    Streamed: visits are numbered, and each load is replaced by that of `slots` visits later.
    """

    walk: Walk
    plan: Plan
    blocks: int  # partners of a home block
    members: int  # of a group, met one after another; 1 where kept
    direction: int  # partners of home block n: n + shift + direction * {0, 1, ...}
    shift: int
    limit: int  # partners exist in [0, limit); the loads of others are clamped, and masked where they are used
    loads: dict[str, tuple[tuple[Callable, Any], ...]]  # name -> (partner block, member -> global memory, slots)
    full: dict[str, Any]  # name -> barriers

    def distance(self, u):
        """Blocks between the diagonal and partner u."""
        if isinstance(u, int):
            return (0, self.blocks - 1)[u] if u < 2 else u - 1
        return jnp.where(u == 0, 0, jnp.where(u == 1, self.blocks - 1, u - 1))

    def partner(self, n, u):
        """Index of a partner; it may not exist."""
        return n + self.shift + self.direction * self.distance(u)

    def existing(self, n, u):
        return jnp.clip(self.partner(n, u), 0, self.limit - 1)

    def number(self, n, member, u):
        return ((n - self.walk.first) * self.members + member) * self.blocks + u

    @property
    def visits(self):
        return (self.walk.end - self.walk.first) * self.members * self.blocks

    def slot(self, n, member, u):
        number = self.number(n, member, u)
        if self.plan.kept:
            number = n + self.direction * self.distance(u) + self.blocks
        return self.walk.warpgroup * self.plan.slots + lax.rem(number, jnp.int32(self.plan.slots))

    def load(self, name, n, member, u):
        slot = self.slot(n, member, u)
        block = self.existing(n, u)
        for source, smem in self.loads[name]:
            plgpu.copy_gmem_to_smem(source(block, member), smem.at[slot], self.full[name].at[slot])

    def load_number(self, name, number):
        per_home = self.members * self.blocks
        within = lax.rem(number, jnp.int32(per_home))
        n = self.walk.first + lax.div(number, jnp.int32(per_home))
        self.load(name, n, lax.div(within, jnp.int32(self.blocks)), lax.rem(within, jnp.int32(self.blocks)))

    @property
    def newest(self):
        """Kept: the partner that the home block before did not meet."""
        return 0 if self.direction < 0 or self.blocks == 1 else 1

    def start(self):
        """Issues the first loads. Kept: waits for all but the newest partner, for which every visit waits."""
        for name in self.loads:
            if self.plan.kept:
                for u in range(self.blocks):
                    self.load(name, self.walk.first, 0, u)
            else:
                for i in range(self.plan.slots):

                    @pl.when(i < self.visits)
                    def _(name=name, i=i):
                        self.load_number(name, jnp.int32(i))

        if self.plan.kept:
            for name in self.loads:
                for u in set(range(self.blocks)) - {self.newest}:
                    plgpu.barrier_wait(self.full[name].at[self.slot(self.walk.first, 0, u)])

    def wait(self, name, n, member, units):
        for u in (self.newest,) if self.plan.kept else units:
            plgpu.barrier_wait(self.full[name].at[self.slot(n, member, u)])

    def spent(self, name, n, member, units):
        """Every warp has read these partners for the last time in the visits of home block n and this member."""
        if self.plan.kept:

            @pl.when(n + 1 < self.walk.end)
            def _():
                self.load(name, n + 1, 0, self.newest)

            return
        for u in units:
            later = self.number(n, member, u) + self.plan.slots

            @pl.when(later < self.visits)
            def _(later=later):
                self.load_number(name, later)


# ---------------------------------------------------------------- masks


@dataclasses.dataclass(frozen=True)
class Mask:
    """What a (64, 64) tile of scores shows. Queries are its rows, or its columns for dk and dv."""

    band: Band
    query_axis: int

    def index(self, axis):
        """Row or column numbers, (64, 64). Spread from vectors: 2 or 16 registers of a thread, not 32."""
        layout, spread = ((PER_ROW, rows_to), (PER_COLUMN, columns_to))[axis]
        return spread(iota((BLOCK,), 0, layout))

    def visible(self, distance, checks):
        """Boolean (64, 64) for a partner, or True. checks: further conditions."""
        i, j = self.index(self.query_axis), self.index(1 - self.query_axis)
        checks = [*checks]
        static = isinstance(distance, int)
        if static and distance == 0:
            checks.append(j <= i)
        if self.band.cuts(distance if static else self.band.blocks - 2):
            checks.append(j - i > BLOCK * distance - self.band.window)
        return functools.reduce(operator.and_, checks) if checks else True

    def fold(self, near, far):
        """The tile of the diagonal and that of the farthest partner as one."""
        return jnp.where(self.index(1 - self.query_axis) <= self.index(self.query_axis), near, far)

    def unfold(self, x):
        """x -> its part in the diagonal, its part in the farthest partner, zero elsewhere."""
        near = self.index(1 - self.query_axis) <= self.index(self.query_axis)
        return jnp.where(near, x, 0.0), jnp.where(near, 0.0, x)


def same_segment(ids, query_block, key_block, mask):
    """Segment ids (t padded,) in global memory -> boolean (64, 64)."""

    def load(block, axis):
        layout, spread = ((PER_ROW, rows_to), (PER_COLUMN, columns_to))[axis]
        return spread(plgpu.load(ids.at[pl.ds(block * BLOCK, BLOCK)], layout=layout, optimized=False))

    return load(query_block, mask.query_axis) == load(key_block, 1 - mask.query_axis)


# ---------------------------------------------------------------- launching


def launch(name, body, operands, outputs, scratch, *, batch, walks, plan, interpret):
    """Runs body(refs) in every warpgroup, refs being a namespace of named references.

    Operands that are None are not passed; their name is None in the namespace.
    """
    given = {key: x for key, x in operands.items() if x is not None}

    def kernel_body(*refs, **scratch_refs):
        named = dict.fromkeys((*operands, "stage"))
        named.update(zip((*given, *outputs), refs, strict=True), **scratch_refs)
        body(types.SimpleNamespace(**named))

    kernel_body.__name__ = name
    kernel = plgpu.kernel(
        kernel_body,
        out_type=tuple(outputs.values()),
        scratch_types=scratch,
        grid=(batch, -(-walks // plan.warpgroups)),
        grid_names=("b", "block"),
        num_threads=plan.warpgroups,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane, approx_math=True),
        interpret=interpret,
    )
    return dict(zip(outputs, kernel(*given.values()), strict=True))
