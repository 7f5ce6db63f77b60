"""Inside the Hopper kernels: matmuls, features, the ring of chunks, and the warpgroup that scans the state.

Layouts and the feature map: `mosaic_gpu_layout`.
"""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.taylor_attention.mosaic_gpu_layout import CHUNK, GROUPS, KEY_DIM, Heads, Segments

STAGES = 3  # depth of the TMA ring
STATE_BUFFERS = 2  # bf16 copies of the state that the two warpgroups pass to each other

WGMMA = plgpu.Layout.WGMMA
PER_ROW = WGMMA.reduce(1)  # one value per row of a (64, n) tile
PER_COLUMN = WGMMA.reduce(0)
NARROW = (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(32))  # (., 16) bf16 tiles
WIDE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # (., 64) bf16 tiles


# ---------------------------------------------------------------- matmuls


@dataclasses.dataclass(frozen=True)
class Mma:
    """wgmma, with the two adapters that GPU interpret mode needs.

    staging: None on a device. In interpret mode, where an A operand in registers is not supported, one narrow
    and one wide shared-memory tile per warpgroup, through which such operands pass.
    """

    staging: tuple[Any, Any] | None
    warpgroup: int

    def registers(self, acc, a, b):
        """acc += a @ b with a in registers."""
        if self.staging is None:
            plgpu.wgmma(acc, a, b)
            return
        tile = self.staging[0 if a.shape[1] == KEY_DIM else 1].at[self.warpgroup]
        tile[...] = a
        plgpu.commit_smem()
        plgpu.wgmma(acc, tile, b)

    def product(self, a, b, n=64):
        """a @ b for shared-memory tiles a (64, .) and b (., n), as a float32 array."""

        def run(acc):
            plgpu.wgmma(acc, a, b)
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((64, n), jnp.float32))

    def update(self, values, accumulate):
        """Runs accumulate(*accs) on accumulators that start from values; returns the new values."""
        if self.staging is None:
            return pl.run_state(lambda accs: accumulate(*accs))(tuple(plgpu.ACC.init(x) for x in values))

        # run_state has no lowering in interpret mode: start from zero and add.
        def run(*accs):
            accumulate(*accs)
            return tuple(acc[...] for acc in accs)

        added = pl.run_scoped(run, *[plgpu.ACC(x.shape, jnp.float32) for x in values])
        return tuple(x + y for x, y in zip(values, added, strict=True))


def iota(shape, dim, layout=WGMMA):
    return plgpu.broadcasted_iota(jnp.int32, shape, dim, layout=layout)


def rows_to(x, n=64):
    """(64,) per-row values -> (64, n)."""
    return lax.broadcast_in_dim(x, (64, n), [0])


def columns_to(x):
    """(64,) per-column values -> (64, 64)."""
    return lax.broadcast_in_dim(x, (64, 64), [1])


def zeros(n=64):
    return plgpu.layout_cast(jnp.zeros((64, n), jnp.float32), WGMMA)


def feature_factors(mma: Mma, group: int, x, first, second):
    """The two factors x A + a0 and x B + b0 of phi(x) for one group of 64 features; x (64, 16) in shared
    memory."""
    a, b = mma.product(x, first.at[group]), mma.product(x, second.at[group])
    if group == 0:
        column = iota((64, 64), 1)
        a = a + jnp.where(column == 0, 1.0, 0.0)
        b = b + jnp.where(column <= KEY_DIM, 1.0, 0.0)
    return a, b


# ---------------------------------------------------------------- chunk ring


@dataclasses.dataclass(frozen=True)
class Ring:
    """TMA ring of chunks. loads: (gmem ref, function of the first row -> index, smem ring) per operand."""

    loads: tuple[tuple[Any, Callable, Any], ...]
    row: Callable  # scan position -> first row in time
    count: Any  # chunks in this scan, traced
    full: Any
    empty: Any | None  # arrivals of the other warpgroup; None without one

    def issue(self, position):
        slot = lax.rem(position, jnp.int32(STAGES))
        row = self.row(position)
        for gmem, index, smem in self.loads:
            plgpu.copy_gmem_to_smem(gmem.at[index(row)], smem.at[slot], self.full.at[slot])

    def start(self):
        for i in range(STAGES):

            @pl.when(i < self.count)
            def _(i=i):
                self.issue(jnp.int32(i))

    def refill(self, position):
        """Loads into the slot that both warpgroups finished two scan positions ago."""
        free = position - 2

        @pl.when((free >= 0) & (free + STAGES < self.count))
        def _():
            if self.empty is not None:
                plgpu.barrier_wait(self.empty.at[lax.rem(free, jnp.int32(STAGES))])
            self.issue(free + STAGES)

    def drain(self):
        if self.empty is not None:
            wait_last(self.empty, self.count, STAGES)


def wait_last(barrier, count, depth):
    """Observes the last arrivals on each of depth barriers: a barrier may not be left with an unseen
    phase."""

    def wait(i, _):
        plgpu.barrier_wait(barrier.at[lax.rem(i, jnp.int32(depth))])

    lax.fori_loop(jnp.maximum(count - depth, 0), count, wait, None)


# ---------------------------------------------------------------- the state warpgroup


@dataclasses.dataclass(frozen=True)
class StateRefs:
    """Shared memory of the state scan. Rings have STAGES slots."""

    x: Any  # (64, 16) keys, or queries in the reverse scan
    u: Any  # (64, 64) values, or dnum in the reverse scan
    weight: Any | None  # (64,) row weights of z only (dden in the reverse scan); None: 1
    first: Any  # A matrices, weighted in the reverse scan
    second: Any
    phi: Any  # (g, 64, 64) features of this chunk
    x_t: Any  # (64, 64): rows 0..15 hold x^T
    s: Any | None = None  # (STATE_BUFFERS * g, 64, 64) bf16, published before each chunk; None: not published
    z: Any | None = None  # (STATE_BUFFERS, 64, 16) bf16
    s_full: Any | None = None
    s_empty: Any | None = None


def scan_states(mma: Mma, refs: StateRefs, ring: Ring, state, decay):
    """Scans the chunks of one segment: publishes the state before each chunk, then adds the chunk to it.

    S^T <- g^L S^T + u^T diag(d) phi(x),  Z <- g^L Z + [x, 1]^T diag(d w) x, over the L rows of the chunk,
    with row decays d and weights w. state: (s_0, s_1, s_2, z) float32. decay: None, or a function of the scan
    position giving g^L and the function layout -> d (64,). Returns the last state.
    """

    def chunk(position, state):
        slot = lax.rem(position, jnp.int32(STAGES))
        ring.refill(position)
        if refs.s is not None:
            buffer = lax.rem(position, jnp.int32(STATE_BUFFERS))

            @pl.when(position >= STATE_BUFFERS)
            def _():
                plgpu.barrier_wait(refs.s_empty.at[buffer])

            for g in range(GROUPS):
                refs.s[buffer * GROUPS + g] = state[g].astype(jnp.bfloat16)
            refs.z[buffer] = state[GROUPS].astype(jnp.bfloat16)
            plgpu.commit_smem()
            plgpu.barrier_arrive(refs.s_full.at[buffer])
        else:
            # Every warp must be done with the phi and x^T of the last chunk; publishing has this barrier in
            # it.
            plgpu.commit_smem()
        plgpu.barrier_wait(ring.full.at[slot])
        x, u = refs.x.at[slot], refs.u.at[slot]
        if decay is not None:
            whole, decays = decay(position)
            state = tuple(part * whole for part in state)
        for g in range(GROUPS):
            a, b = feature_factors(mma, g, x, refs.first, refs.second)
            phi = a * b
            if decay is not None:
                phi = phi * rows_to(decays(PER_ROW))
            refs.phi[g] = phi.astype(jnp.bfloat16)
        refs.x_t.at[0:KEY_DIM].T[...] = plgpu.load(x, layout=WGMMA)
        plgpu.commit_smem()
        x_t = plgpu.load(refs.x_t, layout=WGMMA)
        if refs.weight is not None or decay is not None:
            w = None if refs.weight is None else plgpu.load(refs.weight.at[slot], layout=PER_COLUMN)
            if decay is not None:
                w = decays(PER_COLUMN) if w is None else w * decays(PER_COLUMN)
            row, w = iota((64, 64), 0), columns_to(w)
            x_t = x_t.astype(jnp.float32)
            x_t = jnp.where(row < KEY_DIM, x_t * w, jnp.where(row == KEY_DIM, w, 0.0)).astype(jnp.bfloat16)

        def accumulate(*accs):
            for g in range(GROUPS):
                plgpu.wgmma(accs[g], u.transpose((1, 0)), refs.phi.at[g])
            mma.registers(accs[GROUPS], x_t, x)

        return mma.update(state, accumulate)

    # Row 16 of x^T is the constant 1 that sums x; chunks overwrite rows 0..15 only.
    refs.x_t[...] = jnp.where(iota((64, 64), 0) == KEY_DIM, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()
    state = lax.fori_loop(0, ring.count, chunk, state)
    ring.drain()
    if refs.s is not None:
        wait_last(refs.s_empty, ring.count, STATE_BUFFERS)
    return state


def load_state(s_ref, z_ref, index):
    """Reads a kernel state from global memory, or makes a zero one where s_ref is None."""
    if s_ref is None:
        return (*[zeros()] * GROUPS, zeros(KEY_DIM))
    refs = (*[s_ref.at[*index, g] for g in range(GROUPS)], z_ref.at[*index])
    return tuple(plgpu.load(ref, layout=WGMMA, optimized=False) for ref in refs)


def store_state(s_ref, z_ref, index, state):
    for g in range(GROUPS):
        s_ref[*index, g] = state[g]
    z_ref[*index] = state[GROUPS]


def tile(slots, width):
    """Shared bf16 (64, width) tiles that TMA fills and wgmma reads; width 16 or 64."""
    shape = (CHUNK, width) if slots is None else (slots, CHUNK, width)
    return plgpu.SMEM(shape, jnp.bfloat16, transforms=NARROW if width == KEY_DIM else WIDE)


def selection_scratch(*names):
    return {f"{name}_s": plgpu.SMEM((GROUPS, KEY_DIM, 64), jnp.bfloat16, transforms=NARROW) for name in names}


def state_scratch(published):
    """Shared memory of a state scan besides its operands, and of the states that it publishes."""
    scratch = {"phi": tile(GROUPS, 64), "x_t": tile(None, 64)}
    if published:
        scratch |= {
            "state_s": tile(STATE_BUFFERS * GROUPS, 64),
            "state_z": tile(STATE_BUFFERS, KEY_DIM),
            "ones_s": tile(None, KEY_DIM),
            "s_full": plgpu.Barrier(num_arrivals=1, num_barriers=STATE_BUFFERS),
            "s_empty": plgpu.Barrier(num_arrivals=1, num_barriers=STATE_BUFFERS),
            "empty": plgpu.Barrier(num_arrivals=1, num_barriers=STAGES),
        }
    return scratch


def staging_scratch(interpret, warpgroups):
    if interpret is None:
        return {}
    return {"stage_narrow": tile(warpgroups, KEY_DIM), "stage_wide": tile(warpgroups, 64)}


# ---------------------------------------------------------------- decay


@dataclasses.dataclass(frozen=True)
class Decay:
    """Powers of one head's gamma, taken from log2 gamma so that none overflows: exponents are never
    negative."""

    table: Any  # `decay_table` in global memory
    head: Any

    def power(self, exponent):
        return jnp.exp2(self.table[self.head, 0] * jnp.maximum(exponent, 0).astype(jnp.float32))

    def next_count(self, count):
        """Decayed number of tokens after one more whole chunk."""
        return count * self.table[self.head, 1] + self.table[self.head, 2]

    def since_start(self, layout):
        """gamma^(i + 1): what the state before the chunk has decayed to at row i."""
        return self.power(iota((CHUNK,), 0, layout) + 1)

    def until_end(self, length, layout):
        """gamma^(length - 1 - j): what row j has decayed to at the end of the chunk."""
        return self.power(length - 1 - iota((CHUNK,), 0, layout))

    def forward_scan(self, length):
        """The decay of `scan_states` for a chunk of `length` tokens, forward in time."""
        return self.power(length), functools.partial(self.until_end, length)

    def reverse_scan(self, length):
        return self.power(length), self.since_start


# ---------------------------------------------------------------- one thread block


@dataclasses.dataclass(frozen=True)
class Block:
    """What one thread block works on: batch row, block head, segment, and its chunks in scan order."""

    batch: Any
    head: Any
    segment: Any
    first_chunk: Any
    count: Any
    segments: Segments
    reverse: bool
    decay: Decay | None

    def row(self, position):
        """First row in time of a scan position."""
        return (self.first_chunk + (self.count - 1 - position if self.reverse else position)) * CHUNK

    def length(self, position):
        """Rows of that chunk which are tokens."""
        return jnp.minimum(self.segments.t - self.row(position), CHUNK)

    def of_head(self, head):
        """row -> index of a chunk in a (b, t, heads, .) operand."""
        return lambda row: (self.batch, pl.ds(row, CHUNK), head)

    def along_time(self, row):
        """Index of a chunk in a (b, heads, t) operand."""
        return (self.batch, self.head, pl.ds(row, CHUNK))

    def scan_factors(self):
        """The `decay` argument of `scan_states`."""
        if self.decay is None:
            return None
        factors = self.decay.reverse_scan if self.reverse else self.decay.forward_scan
        return lambda position: factors(self.length(position))


def this_block(decay_ref, heads: Heads, segments: Segments, *, reverse: bool, skip: int = 0) -> Block:
    """decay_ref: the table of `decay_table` or None; skip: segments before the first of the grid."""
    head, segment = lax.axis_index("h"), lax.axis_index("segment") + skip
    first = segment * segments.chunks_each
    count = jnp.minimum(segments.chunks - first, segments.chunks_each)
    decay = None if decay_ref is None else Decay(decay_ref, heads.of_query(head))
    return Block(lax.axis_index("b"), head, segment, first, count, segments, reverse, decay)


def load_constants(pairs, barrier):
    for gmem, smem in pairs:
        plgpu.copy_gmem_to_smem(gmem, smem, barrier)


def write_ones(ref):
    """Writes the (64, 16) matrix with ones in column 0: times rows 16..31 of z it broadcasts row 16 to every
    row."""
    ref[...] = jnp.where(iota((64, KEY_DIM), 1) == 0, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()


# ---------------------------------------------------------------- launching


def launch(name, body, operands, outputs, scratch, *, grid, warpgroups, interpret):
    """Runs body(refs) on a grid (batch, head, segment), refs being a namespace of named references.

    Operands that are None are not passed; their name is None in the namespace.
    """
    given = {key: x for key, x in operands.items() if x is not None}

    def kernel_body(*refs, **scratch_refs):
        named = dict.fromkeys(operands)
        named.update(zip((*given, *outputs), refs, strict=True), **scratch_refs)
        body(types.SimpleNamespace(**named))

    kernel_body.__name__ = name
    kernel = plgpu.kernel(
        kernel_body,
        out_type=tuple(outputs.values()),
        scratch_types=scratch,
        grid=grid,
        grid_names=("b", "h", "segment"),
        num_threads=warpgroups,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=interpret,
    )
    return dict(zip(outputs, kernel(*given.values()), strict=True))
