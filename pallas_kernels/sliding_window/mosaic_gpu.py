"""Sliding-window attention on Hopper, forward: one Mosaic GPU kernel.

With s_ij = scale q_i.k_j over the visible keys j of query i: y_i = sum_j exp(s_ij) v_j / l_i, l_i = sum_j exp(s_ij),
and lse_i = log l_i for the backward pass. Inside the kernel exponents are base 2.

Each warpgroup computes a run of 64-query blocks. Up to a window of 128 (3 key blocks) all scores of a query block are
in registers, softmax takes one pass, and key blocks stay in shared memory for the next query block; wider windows
stream their key blocks and rescale the running sums (online softmax).
Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, columns_to, iota, rows_to
from pallas_kernels.sliding_window.mosaic_gpu_blocks import (
    Partners,
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
    BlockWindow,
    Geometry,
    Plan,
    Tuning,
    first_keys,
    pad_rows,
    pad_vectors,
    plan_kernel,
)

LOG2_E = np.float32(np.log2(np.e))
LN_2 = np.float32(np.log(2))
HIDDEN = np.float32(-1e30)  # exponent of a masked key
LOWEST = np.float32(-1e20)  # floor of a row's maximum, so that exp2(HIDDEN - LOWEST) = 0


@dataclasses.dataclass(frozen=True)
class Mask:
    """Visible entries of a tile of scores: stationary blocks are rows, partners columns. Queries are the rows if
    partners are earlier in time, else the columns."""

    partners: Partners
    start: Any | None  # first visible key
    ids: Any | None  # (t padded,) segment ids in global memory

    @property
    def query_axis(self):
        return 0 if self.partners.direction < 0 else 1

    def index(self, axis):
        """Row or column numbers, (64, 64), broadcast from vectors to save registers."""
        layout, spread = ((PER_ROW, rows_to), (PER_COLUMN, columns_to))[axis]
        return spread(iota((BLOCK,), 0, layout))

    @property
    def query_and_key(self):
        return self.index(self.query_axis), self.index(1 - self.query_axis)

    def exponents(self, scores, scale, n, u, less=None):
        """scale * scores - less for stationary block n and partner u; HIDDEN for masked keys.

        less: (64,) by query, or None for 0. A partner that does not exist is masked by the factor and the addend.
        """
        i, j = self.query_and_key
        own = isinstance(u, int) and u == 0
        distance, partner = self.partners.distance(u), self.partners.partner(n, u)
        if not own or self.partners.shift < 0:
            exists = (partner >= 0) & (partner < self.partners.limit)
            scale = jnp.where(exists, scale, 0.0)
            less = jnp.where(exists, 0.0 if less is None else less, -HIDDEN)
        exponents = scores * scale
        if less is not None:
            exponents = exponents - (less if less.ndim == 0 else (rows_to, columns_to)[self.query_axis](less))
        checks = [j <= i] if own else []
        if isinstance(u, int) and self.partners.block_window.cuts(distance):
            checks.append(j - i > BLOCK * distance - self.partners.block_window.window)
        if self.start is not None:
            checks.append(j >= self.start - BLOCK * (partner if self.query_axis == 0 else n))
        if self.ids is not None:
            checks.append(self.load_ids(n, 0) == self.load_ids(self.partners.partner(n, u), 1))
        return jnp.where(functools.reduce(operator.and_, checks), exponents, HIDDEN) if checks else exponents

    def load_ids(self, block, axis):
        """Loads the ids of a block, clamped to existing blocks."""
        layout, spread = ((PER_ROW, rows_to), (PER_COLUMN, columns_to))[axis]
        block = jnp.clip(block, 0, self.ids.shape[0] // BLOCK - 1)
        return spread(plgpu.load(self.ids.at[rows(block)], layout=layout, optimized=False))

    def grouped(self, units):
        """Partners by tile of scores: the diagonal and the farthest may share a tile."""
        folded = 2 if self.partners.block_window.folds and len(units) > 1 else 1
        return [units[:folded], *((u,) for u in units[folded:])]

    def fold(self, parts):
        """Folds the tiles of a group into one."""
        if len(parts) == 1:
            return parts[0]
        i, j = self.query_and_key
        return jnp.where(j <= i, *parts)

    def unfold(self, x, group):
        """Parts of a tile for each partner of its group, zero elsewhere, bf16."""
        if len(group) == 1:
            return [x.astype(jnp.bfloat16)]
        i, j = self.query_and_key
        near = jnp.where(j <= i, x, 0.0)
        # A second `where` would take four times the instructions.
        return [near.astype(jnp.bfloat16), (x - near).astype(jnp.bfloat16)]


def make_mask(refs, partners: Partners, batch) -> Mask:
    """Mask of a batch row; refs.start and refs.segment_ids may be None."""
    start = None if refs.start is None else refs.start[batch]
    ids = None if refs.segment_ids is None else refs.segment_ids.at[batch]
    return Mask(partners, start, ids)


TINY = np.float32(1e-30)


def _forward_kernel(q, k, v, start, segment_ids, *, problem, plan, scale, interpret):
    """y (b, t padded, h, d) bf16 and lse (b, h, t padded) float32; operands from `kernel_operands`."""
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
            """Adds partners to the sums: maximum, total and values of each row; None: no sums yet."""
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

    q: (b, t, h, d) bf16, t >= 1, d a multiple of 16 up to 128; k, v: (b, s, g, d), s >= t; start: (b,) int32, None: 0;
    segment_ids: (b, t) int32 or None, only with s = t; window: 1 .. 1024; tuning: overrides of the plan. Returns y,
    zero where a query sees no key, and lse (b, h, t) float32, -inf there.
    """
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
    """Warpgroups whose accumulators (d columns) and scores fit in registers, found by compiling."""
    tiles = 3 if window.blocks == 3 else 2
    if d <= 64 and tiles == 2:
        return 4
    return 3 if window.window % BLOCK == 0 and d + BLOCK * (tiles - 2) <= 128 else 2
