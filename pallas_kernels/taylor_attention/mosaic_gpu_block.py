"""Inside the Hopper kernels: what one thread block works on, how its chunks arrive, and how it starts."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.ring import Ring
from pallas_kernels.taylor_attention.mosaic_gpu_layout import Heads
from pallas_kernels.taylor_attention.mosaic_gpu_parts import tile
from pallas_kernels.taylor_attention.mosaic_gpu_split import CHUNK, Segments, Widths


@dataclasses.dataclass(frozen=True)
class Decay:
    """Powers of one head's decay; no exponent is negative, so that none overflows."""

    table: Any  # `decay_table` of this head, in shared memory
    head: Any

    def between(self, later, earlier):
        """decay^(later - earlier), for later >= earlier, float32."""
        return jnp.exp2(self.table[3, 0] * jnp.maximum(later - earlier, 0.0))

    def next_count(self, count):
        """Decayed number of tokens after one more whole chunk."""
        return count * self.table[3, 2] + self.table[3, 1]

    def whole(self, short):
        """decay^length of a chunk; short: whether it is the last, shorter one."""
        return self.table[3, 2 if short is False else jnp.where(short, 3, 2)]

    def since_start(self, layout):
        """decay^(i + 1): what the state before the chunk has decayed to at row i."""
        return plgpu.load(self.table.at[0], layout=layout)

    def until_end(self, short, layout):
        """decay^(length - 1 - j): what row j has decayed to at the end of the chunk."""
        return plgpu.load(self.table.at[1 if short is False else jnp.where(short, 2, 1)], layout=layout)


@dataclasses.dataclass(frozen=True)
class Block:
    """Work of one thread block: batch row, block head, segment, and its chunks in scan order."""

    batch: Any
    head: Any
    segment: Any
    first_chunk: Any
    count: Any
    segments: Segments
    widths: Widths
    reverse: bool
    decay: Decay | None

    def row(self, position):
        """First row in time of a scan position."""
        return (self.first_chunk + (self.count - 1 - position if self.reverse else position)) * CHUNK

    def is_short(self, position):
        """Whether that chunk is the last in time, and short."""
        return self.segments.t % CHUNK > 0 and self.row(position) + CHUNK > self.segments.t

    def of_head(self, head):
        """row -> index of a chunk in a (b, t, heads, .) operand."""
        return lambda row: (self.batch, pl.ds(row, CHUNK), head)

    def along_time(self, row):
        """Index of a chunk in a (b, heads, t) operand."""
        return (self.batch, self.head, pl.ds(row, CHUNK))

    def scan_factors(self, position):
        """decay^L, and the function layout -> factors of rows (64,), with which the state scan takes a chunk in."""
        short = self.is_short(position)
        rows = self.decay.since_start if self.reverse else functools.partial(self.decay.until_end, short)
        return self.decay.whole(short), rows


def this_block(refs, heads: Heads, segments: Segments, *, reverse: bool, skip: int = 0, pieces: int = 1) -> Block:
    """skip: segments before the first of the grid; pieces: blocks of the grid that share a segment."""
    head, index = lax.axis_index("h"), lax.axis_index("segment")
    segment = index // pieces + skip
    first = segment * segments.chunks_each
    count = jnp.minimum(segments.chunks - first, segments.chunks_each)
    if pieces > 1:
        each = segments.piece_chunks(pieces)
        before = lax.rem(index, jnp.int32(pieces)) * each
        first, count = first + before, jnp.clip(count - before, 0, each)
    decay = None if refs.decay is None else Decay(refs.decay_s, heads.of_query(head))
    return Block(lax.axis_index("b"), head, segment, first, count, segments, heads.widths, reverse, decay)


def decay_scratch(decay):
    """Shared memory of a head's powers of decay, which a block loads once."""
    if decay is None:
        return {}
    return {"decay_s": plgpu.SMEM(decay.shape[1:], jnp.float32), "decay_full": plgpu.Barrier(num_arrivals=1)}


def load_decay(refs, block: Block):
    if block.decay is not None:
        plgpu.copy_gmem_to_smem(refs.decay.at[block.decay.head], refs.decay_s, refs.decay_full)


def wait_decay(refs, block: Block):
    if block.decay is not None:
        plgpu.barrier_wait(refs.decay_full)


def stream_ring(refs, streams, block: Block, empty) -> Ring:
    """The ring of named streams. A stream is (array (b, t, parts * heads, .) of `mosaic_gpu_parts.operand`, function
    block head -> head), or (array (b, blocks, padded t) float32, None)."""
    loads = []
    for name, (array, head) in streams.items():
        ref, ring = getattr(refs, name), getattr(refs, f"{name}_s")
        if head is None:
            loads.append((ref, block.along_time, lambda slot, ring=ring: ring.at[slot]))
            continue
        for part in range(block.widths.parts):
            at = head(block.head) + part * (array.shape[2] // block.widths.parts)
            loads.append((ref, block.of_head(at), lambda slot, ring=ring, part=part: ring.at[slot, part]))
    stages = block.widths.stages
    return Ring(tuple(loads), row=block.row, count=block.count, stages=stages, full=refs.full, empty=empty)


def stream_scratch(streams, widths: Widths):
    """Shared memory of `stream_ring`: a ring of slots `NAME_s` for each stream, and its barrier."""
    stages, parts = widths.stages, widths.parts
    rows = plgpu.SMEM((stages, CHUNK), jnp.float32)
    rings = {
        f"{name}_s": rows if head is None else tile((stages, parts), array.shape[-1])
        for name, (array, head) in streams.items()
    }
    loads = sum(1 if head is None else parts for _, head in streams.values())
    return rings | {"full": plgpu.Barrier(num_arrivals=loads, num_barriers=stages)}
