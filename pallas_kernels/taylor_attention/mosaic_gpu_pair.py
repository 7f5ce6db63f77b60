"""The frame of the forward, dq and dkdv kernels: two warpgroups that share the chunks of one segment.

Warpgroup 1 issues TMA, scans the state and publishes it, in parts of bfloat16, before each chunk. Warpgroup 0 takes
the chunks in turn: it reads the published state and writes the results. Two, not three: each may use 255 registers
without setmaxnreg, which ptxas ignores under jax 0.12.

Pallas' own barriers, around each store to shared memory and before each copy, are off. They guard what one warp of a
warpgroup could do to the others; here other barriers do. A store is followed by `commit_smem` (a fence towards wgmma
and TMA, and a barrier) before anyone reads it. It follows a barrier that every warp reaches when it has left what the
store overwrites:
  features, x^T, u   two buffers; those of the next chunk, or piece of features, are written after the commit of this
                     one, which follows the wait for the products of the one before, their last readers;
  published states   two buffers; after `s_empty`, on which every thread of warpgroup 0 arrives;
  staged results     after `wait_smem_to_gmem`, which ends in a barrier.
A slot of the ring is filled again after `empty`, on which every thread of warpgroup 0 arrives, and after a commit:
all warps of warpgroup 1 left it two chunks ago, and the commit orders reads before the copy. Every thread that reads
what `full` or `s_full` announces waits for it. Interpret mode, with one thread a warpgroup, checks fences and the order
of warpgroups, not this.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, columns_to, launch, rows_to
from pallas_kernels.taylor_attention.mosaic_gpu_block import (
    Block,
    decay_scratch,
    load_decay,
    stream_ring,
    stream_scratch,
    this_block,
    wait_decay,
)
from pallas_kernels.taylor_attention.mosaic_gpu_parts import (
    Products,
    features,
    output_tile,
    pull_back,
    staging_scratch,
    this_mma,
    tiles_of,
    transposed,
    write_constants,
)
from pallas_kernels.taylor_attention.mosaic_gpu_split import CHUNK, Cut, Widths
from pallas_kernels.taylor_attention.mosaic_gpu_state import (
    BUFFERS,
    Scanned,
    load_start,
    scan_states,
    state_scratch,
    store_state,
)


@dataclasses.dataclass(frozen=True)
class ChunkStep:
    """One chunk, for warpgroup 0: the state may be read between `wait_state` and `release`, streams until then."""

    refs: Any
    products: Products
    block: Block
    position: Any
    scale: float  # a power of two

    @property
    def widths(self) -> Widths:
        return self.block.widths

    @property
    def slot(self):
        return lax.rem(self.position, jnp.int32(self.widths.stages))

    @property
    def buffer(self):
        return lax.rem(self.position, jnp.int32(BUFFERS))

    def stream(self, name, layout):
        """(64,) float32 in registers."""
        return plgpu.load(getattr(self.refs, f"{name}_s").at[self.slot], layout=layout)

    def tiles(self, *names):
        """The parts of each, in shared memory."""
        return (tiles_of(getattr(self.refs, f"{name}_s").at[self.slot]) for name in names)

    def scaled(self, x):
        return x if self.scale == 1 else x * jnp.asarray(self.scale, x.dtype)

    def wait_state(self):
        plgpu.barrier_wait(self.refs.s_full.at[self.buffer])

    def state(self, cut: Cut, *, values_first: bool):
        """The parts of the columns of a cut of the state: (values, features) or (features, values)."""
        parts = range(self.widths.parts)
        state = tuple(self.refs.state_s.at[self.buffer, i, *self.widths.part(cut)] for i in parts)
        return state if values_first == self.widths.values_first else transposed(state)

    def add_z(self, acc, x):
        """acc += z1 + x Z2, for each of the parts that x^T had in the scan."""
        z, keys, parts = tiles_of(self.refs.state_z.at[self.buffer]), self.widths.keys, self.widths.parts
        for i in range(parts):
            start = 2 * i * keys
            self.products.registers(acc, x, [y.at[start : start + keys] for y in z], parts=parts - i)
            ones = [y.at[start + keys : start + 2 * keys] for y in z]
            self.products.tiles(acc, (self.refs.ones_s,), ones, parts=parts - i)

    def features(self, x, cut: Cut, *, halved: bool):
        """Columns of phi(x); halved: on the query side."""
        return features(self.products.mma, x, self.widths, cut, halved=halved)

    def add_past(self, acc, x, *, halved: bool, first=None, factor=lambda phi: phi):
        """acc += factor(phi(x)) S, one product for each cut of `Widths.read`, of which at most two are in flight.

        first: features of the first cut, where they are there already.
        """
        for i, cut in enumerate(self.widths.read):
            if i > 1:
                self.products.await_all_but_last()
            phi = self.features(x, cut, halved=halved) if first is None or i > 0 else first
            self.products.registers(acc, factor(phi), self.state(cut, values_first=False))

    def meets(self, *, query_axis: int):
        """Whether query i meets key j, i >= j, and decay^(i - j) or None: (64, 64), queries on that axis.

        The indices come from shared memory: computed ones would be hoisted, and hold registers through the loop.
        """
        rows = rows_to(plgpu.load(self.refs.index_s, layout=PER_ROW))
        columns = columns_to(plgpu.load(self.refs.index_s, layout=PER_COLUMN))
        query, key = (rows, columns) if query_axis == 0 else (columns, rows)
        decay = self.block.decay
        return query >= key, None if decay is None else decay.between(query, key)

    def release(self):
        plgpu.barrier_arrive(self.refs.empty.at[self.slot])
        plgpu.barrier_arrive(self.refs.s_empty.at[self.buffer])


def pulled_accumulators(widths: Widths):
    """The first two of `PullBack`."""
    return [_accumulator(cut) for cut in widths.pulled[:2]]


def _accumulator(cut: Cut):
    return plgpu.ACC((CHUNK, cut[1] - cut[0]), jnp.float32)


class PullBack:
    """J(x)^T (rows S^T) of a chunk, one product for each cut of `Widths.pulled`, of which at most two are in flight.

    Between the first and the rest there is room for other products.
    """

    def __init__(self, chunk: ChunkStep, x, rows, accumulators, *, halved: bool):
        """x (64, keys), rows (64, values), both in registers; starts the first two products."""
        self.chunk, self.x, self.rows, self.accumulators, self.halved = chunk, x, rows, accumulators, halved
        self.cuts = chunk.widths.pulled
        for i, accumulator in enumerate(accumulators):
            self._start(i, accumulator)

    def first(self):
        """(64, keys) float32 of the first cut."""
        return self._pull(0, self.chunk.products.load(self.accumulators[0]), None)

    def rest(self, start):
        """start + that of the other cuts."""
        return self._from(1, self.accumulators[1], start)

    def _from(self, i: int, accumulator, start):
        """start + that of the cuts from i on, the first in flight; an accumulator holds registers in its scope."""
        if i + 1 == len(self.cuts):
            return self._pull(i, self.chunk.products.load(accumulator), start)
        u = self.chunk.products.load(accumulator, alone=True)

        def run(following):
            self._start(i + 1, following)
            return self._from(i + 1, following, self._pull(i, u, start))

        return pl.run_scoped(run, _accumulator(self.cuts[i + 1]))

    def _start(self, i: int, accumulator):
        self.chunk.products.registers(accumulator, self.rows, self.chunk.state(self.cuts[i], values_first=True))

    def _pull(self, i: int, u, start):
        chunk = self.chunk
        return pull_back(chunk.products.mma, self.x, u, start, chunk.widths, self.cuts[i], halved=self.halved)


def paired_kernel(
    name, step, *, streams, scanned: Scanned, start, decay, scale, outputs, last, heads, segments, reverse, interpret,
    counts=None,
):  # fmt: skip
    """Runs step(ChunkStep, count) -> ({output: (64, .) values}, count) on every chunk; returns arrays by output name.

    streams: as for `stream_ring`; start: kernel states of `border_states`, where the scans of segments start; scale: of
    s, a power of two; outputs: name -> width of a (b, t, blocks, width) array of `Widths.dtype`, None: (b, blocks,
    padded t) float32; last: also return "s" and "z", the state after the scan of all segments; counts: (b, h, n_seg)
    float32 that steps pass on from chunk to chunk, or None.
    """

    widths = heads.widths

    def body(r):
        block = this_block(r, heads, segments, reverse=reverse)
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup == 1)
        def _():
            load_decay(r, block)
            ring = stream_ring(r, streams, block, r.empty)
            ring.start()
            wait_decay(r, block)
            state = load_start(r, block)
            state = scan_states(this_mma(r, interpret, widths, 1), r, scanned, ring, block, state, published=True)
            if last:

                @pl.when(block.segment == (0 if reverse else segments.count - 1))
                def _():
                    store_state(widths, r.s, r.z, (block.batch, block.head), state)

        @pl.when(warpgroup == 0)
        def _():
            write_constants(r)
            wait_decay(r, block)

            def chunk(position, count):
                plgpu.barrier_wait(r.full.at[lax.rem(position, jnp.int32(widths.stages))])
                products = Products(this_mma(r, interpret, widths, 0), widths.parts)
                results, count = step(ChunkStep(r, products, block, position, scale), count)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                for output, x in results.items():
                    staged = getattr(r, f"{output}_o")
                    staged[...] = x.astype(staged.dtype)
                plgpu.commit_smem()
                row = block.row(position)
                for output, width in outputs.items():
                    index = block.along_time(row) if width is None else block.of_head(block.head)(row)
                    plgpu.copy_smem_to_gmem(getattr(r, f"{output}_o"), getattr(r, output).at[index])
                return count

            head = heads.of_query(block.head)
            lax.fori_loop(0, block.count, chunk, None if counts is None else r.counts[block.batch, head, block.segment])
            plgpu.wait_smem_to_gmem(0)

    s0, z0 = (None, None) if start is None else start
    b, t = streams["q"][0].shape[:2]
    blocks, f32, shape = heads.blocks, jnp.float32, jax.ShapeDtypeStruct
    results = {
        output: shape((b, blocks, segments.padded), f32) if w is None else shape((b, t, blocks, w), widths.dtype)
        for output, w in outputs.items()
    }
    if last:
        results["s"] = shape((b, blocks, *widths.state), f32)
        results["z"] = shape((b, blocks, CHUNK, widths.keys), f32)
    operands = {name: array for name, (array, _) in streams.items()}
    return launch(
        name,
        body,
        {**operands, "counts": counts, "s0": s0, "z0": z0, "decay": decay},
        results,
        {
            **stream_scratch(streams, widths),
            **{f"{output}_o": output_tile(width, widths.dtype) for output, width in outputs.items()},
            **state_scratch(widths, published=True, weighted=scanned.u_weight is not None or decay is not None),
            **decay_scratch(decay),
            **staging_scratch(interpret, widths, 2),
        },
        grid={"b": b, "h": blocks, "segment": segments.count},
        warpgroups=2,
        auto_barriers=False,
        interpret=interpret,
    )
