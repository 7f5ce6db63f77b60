"""Geometry of the Hopper kernels of sliding-window attention, and padding in XLA.

Queries and keys are cut into blocks of 64. Past keys are padded in front to whole blocks, so the own keys of query
block n are key block n + past / 64. It has `blocks` partners: the key blocks at distance 0 (the diagonal) to `blocks` -
1 (the farthest) before its own. Row i of the query block sees column j of the key block at distance m if

    64 m - window < j - i,    and j <= i if m = 0.

Only the diagonal, the farthest partner and, unless the window is a multiple of 64, the one before it are masked in
part. Unless window = 1 modulo 64, the visible entries of the diagonal and of the farthest partner are disjoint, so one
(64, 64) tile of scores holds both (folding).

A kernel processes its stationary blocks (queries; or keys, for dk and dv) in order, each with its partners.
"""

import dataclasses

import jax.numpy as jnp

from pallas_kernels.dispatch import hopper_objection, multiprocessors
from pallas_kernels.sliding_window.problem import Problem

BLOCK = 64
SHARED_BYTES = 227 * 1024  # of a thread block
VECTOR_BYTES = 4096  # upper bound for one (64,) operand of a ring: 4 slots of 4 warpgroups
BARRIER_BYTES = 1024
MOST_KEPT = 3  # maximum of partners whose scores are in registers together
BACKWARD_WARPGROUPS = 2  # whose accumulators, scores and their gradients fit in registers


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    reason = hopper_objection((p.dtype_name,))
    if reason is not None:
        return reason
    if p.k != p.v or p.k % 16 or not 16 <= p.k <= 128:
        return f"head_dims {p.k} of keys and {p.v} of values are not one multiple of 16 up to 128"
    return f"window={p.window} is more than 1024" if p.window > 1024 else None


@dataclasses.dataclass(frozen=True)
class BlockWindow:
    """Partners of a block, and which of them are masked."""

    window: int

    @property
    def blocks(self) -> int:
        """Number of partners of a block."""
        return 1 + -(-(self.window - 1) // BLOCK)

    def cuts(self, distance: int) -> bool:
        """Whether the edge of the window masks entries of the partner at this distance in blocks."""
        return BLOCK * distance - self.window > -BLOCK

    @property
    def folds(self) -> bool:
        return BLOCK * (self.blocks - 1) >= self.window


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Static sizes of one call; q (b, t, h, d), k and v (b, s, g, d)."""

    b: int
    t: int
    s: int
    h: int
    g: int
    d: int
    block_window: BlockWindow

    @classmethod
    def of(cls, q, k, window: int):
        """Geometry of arrays; the window is at most the number of keys."""
        return cls(*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], BlockWindow(min(window, k.shape[1])))

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.h // self.g

    @property
    def front(self) -> int:
        """Zero rows before the first key."""
        return -(self.s - self.t) % BLOCK

    @property
    def past_blocks(self) -> int:
        return (self.s - self.t + self.front) // BLOCK

    @property
    def query_blocks(self) -> int:
        return -(-self.t // BLOCK)

    @property
    def key_blocks(self) -> int:
        return self.past_blocks + self.query_blocks


@dataclasses.dataclass(frozen=True)
class Plan:
    """Use of a multiprocessor by a kernel: shared memory, registers, and tasks of warpgroups."""

    kept: bool  # partners stay in shared memory while needed; else loaded once per stationary block
    slots: int  # in a warpgroup's ring of partners
    ahead: int  # first operands of the ring, with one more slot: loaded a stationary block early
    staged: bool  # results have their own tiles (only if kept); else the tiles of stationary operands
    run: int  # stationary blocks per task
    warpgroups: int  # per thread block; each has its own task and shared memory

    def ring_slots(self, operand: int) -> int:
        """Slots of an operand of the ring, by index."""
        return self.slots + (operand < self.ahead)

    def tasks(self, heads: int, stationary_blocks: int) -> int:
        """Number of tasks per batch row."""
        return heads * -(-stationary_blocks // self.run)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """Overrides of a `Plan`; None: automatic."""

    run: int | None = None
    warpgroups: int | None = None


AUTO = Tuning()


def plan_kernel(
    problem: Geometry,
    *,
    stationary: int,
    results: int,
    vectors: int = 0,
    most: int,
    heads: int,
    stationary_blocks: int,
    keep: bool = True,
    ahead: int = 0,
    tuning: Tuning,
) -> Plan:
    """The `Plan` of a kernel.

    stationary, results: number of operands and results of (64, d); vectors: rings of (64,) operands; most: warpgroups
    that the registers allow; heads, stationary_blocks: work per batch row; keep: whether partners may be kept; ahead:
    operands of the ring with one more slot, if partners are kept and it costs no warpgroup.
    """
    partners, tile_bytes = problem.block_window.blocks, 2 * BLOCK * problem.d

    def resident(tiles):
        return min(most, (SHARED_BYTES - BARRIER_BYTES - VECTOR_BYTES * vectors) // (tiles * tile_bytes))

    keep = keep and partners <= MOST_KEPT and resident(stationary + 2 * partners) >= 2
    slots = partners if keep else next(n for n in (4, 3, 2) if n == 2 or resident(stationary + 2 * n) >= 2)
    tiles = stationary + 2 * slots
    staged = keep and resident(tiles + results) == resident(tiles)
    warpgroups = resident(tiles)
    ahead = ahead if keep and resident(tiles + results * staged + ahead) == warpgroups else 0
    run = tuning.run or choose_run(problem.b * heads, stationary_blocks, multiprocessors() * warpgroups)
    plan = Plan(keep, slots, ahead, staged, min(run, stationary_blocks), warpgroups)
    useful = min(tuning.warpgroups or warpgroups, plan.tasks(heads, stationary_blocks))
    return dataclasses.replace(plan, warpgroups=min(warpgroups, useful))


def plan_dq(problem: Geometry, tuning: Tuning) -> Plan:
    """Plan of dq. Scores and gradients of kept partners are in registers together: too many for three partners and
    d > 64. Keys are needed until the end of a block and first in the next, so they have one more slot."""
    return plan_kernel(
        problem,
        stationary=2,
        results=1,
        vectors=2,
        most=BACKWARD_WARPGROUPS,
        keep=problem.d <= BLOCK or problem.block_window.blocks < 3,
        ahead=1,
        heads=problem.h,
        stationary_blocks=problem.query_blocks,
        tuning=tuning,
    )


def plan_dkdv(problem: Geometry, tuning: Tuning) -> Plan:
    """Plan of dk and dv. Both operands of the ring are needed until the end of a block."""
    return plan_kernel(
        problem,
        stationary=2,
        results=2,
        vectors=2,
        most=BACKWARD_WARPGROUPS,
        ahead=2,
        heads=problem.g,
        stationary_blocks=problem.key_blocks,
        keep=problem.group == 1,
        tuning=tuning,
    )


def choose_run(chains: int, blocks: int, places: int, extra: int = 1) -> int:
    """Stationary blocks per task with the least time, for `places` concurrent tasks over `chains` of `blocks`.

    A task counts as `extra` blocks more, for waits and repeated loads at its start.
    """

    def cost(runs):
        return -(-chains * runs // places) * (-(-blocks // runs) + extra)

    return -(-blocks // min(range(1, blocks + 1), key=cost))


def pad_rows(x, before: int = 0):
    """Adds zero rows in front, and at the end up to whole blocks if TMA cannot cut the tail: fewer than 64 rows, or no
    multiple of 8."""
    rows = before + x.shape[1]
    behind = -rows % BLOCK if rows < BLOCK or rows % 8 else 0
    return jnp.pad(x, ((0, 0), (before, behind), (0, 0), (0, 0))) if before or behind else x


def pad_vectors(x):
    """Pads the last axis with zeros to whole blocks."""
    behind = -x.shape[-1] % BLOCK
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, behind)]) if behind else x


def first_keys(start, problem: Geometry):
    """First visible key of every row, (b,) int32, counted from the padding in front; None: all are visible."""
    if start is None and problem.front == 0:
        return None
    start = jnp.zeros(problem.b, jnp.int32) if start is None else jnp.maximum(start.astype(jnp.int32), 0)
    return start + problem.front
