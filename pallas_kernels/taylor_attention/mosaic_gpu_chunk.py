"""Inside the Hopper kernels: what warpgroup 0 has of a chunk, of the state before it, and what it does with both."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, columns_to, rows_to
from pallas_kernels.taylor_attention.mosaic_gpu_block import Block
from pallas_kernels.taylor_attention.mosaic_gpu_parts import Products, tiles_of, transposed
from pallas_kernels.taylor_attention.mosaic_gpu_state import BUFFERS
from pallas_kernels.taylor_attention.mosaic_gpu_tiles import features, pull_back
from pallas_kernels.taylor_attention.mosaic_gpu_widths import CHUNK, Cut, Widths


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
