"""Inside the Hopper kernels: what one thread block works on, how its chunks arrive, and how it starts."""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    CHUNK,
    GROUPS,
    KEY_DIM,
    Heads,
    Segments,
    selection_matrices,
)
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import NARROW, iota, tile

STAGES = 3  # depth of the TMA ring


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


def selections(*names):
    """The named matrices of `selection_matrices`."""
    return {
        name: x for name, x in zip(("first", "first_q", "second"), selection_matrices(), strict=True) if name in names
    }


def selection_scratch(matrices):
    tiles = {f"{n}_s": plgpu.SMEM((GROUPS, KEY_DIM, 64), jnp.bfloat16, transforms=NARROW) for n in matrices}
    return tiles | {"selected": plgpu.Barrier(num_arrivals=len(matrices))}


def load_selections(refs, matrices):
    for name in matrices:
        plgpu.copy_gmem_to_smem(getattr(refs, name), getattr(refs, f"{name}_s"), refs.selected)


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


def stream_ring(refs, streams, block: Block, empty) -> Ring:
    """The ring of named streams. A stream is (array (b, t, heads, .), function block head -> head), or
    (array (b, blocks, padded t) float32, None)."""

    def load(name, head):
        index = block.along_time if head is None else block.of_head(head(block.head))
        return getattr(refs, name), index, getattr(refs, f"{name}_s")

    loads = tuple(load(name, head) for name, (_, head) in streams.items())
    return Ring(loads, row=block.row, count=block.count, full=refs.full, empty=empty)


def stream_scratch(streams):
    """Shared memory of `stream_ring`: a ring of slots `NAME_s` for each stream, and its barrier."""
    rings = {
        f"{name}_s": plgpu.SMEM((STAGES, CHUNK), jnp.float32) if head is None else tile(STAGES, array.shape[-1])
        for name, (array, head) in streams.items()
    }
    return rings | {"full": plgpu.Barrier(num_arrivals=len(streams), num_barriers=STAGES)}


def wait_last(barrier, count, depth):
    """Observes the last arrivals on each of depth barriers: a barrier may not be left with an unseen
    phase."""

    def wait(i, _):
        plgpu.barrier_wait(barrier.at[lax.rem(i, jnp.int32(depth))])

    lax.fori_loop(jnp.maximum(count - depth, 0), count, wait, None)


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
