"""Operands of tensor cores in parts of bfloat16, and the products in flight, of one warpgroup of the Hopper kernels.

A bfloat16 number is its only part. A float32 number is two: its rounding to bfloat16, and the rounding of what is left,
16 bits of mantissa together. A product of two such numbers is three products, a0 b0 + a0 b1 + a1 b0, summed in float32;
what is left out, and what parts do not hold, is at most 2^-16 of it. tf32 would be one product of 2^-11, of operands
that wgmma wants with K as their minor axis, which values and features are not.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import WGMMA, Mma

MOST_IN_FLIGHT = 7
"""Groups of wgmma that a wait can leave in flight."""


def operand(x, parts: int):
    """x (b, t, heads, n) for TMA, in XLA: (b, t, parts * heads, n) bfloat16, all first parts before all second ones."""
    split = []
    for _ in range(parts - 1):
        # Not a conversion and back, which XLA takes for nothing.
        split.append(lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7))
        x = x - split[-1]
    return jnp.concatenate([part.astype(jnp.bfloat16) for part in (*split, x)], 2) if split else x


def split(x, parts: int):
    """The parts of x in registers, bfloat16 where there is one, else float32."""
    found = []
    for _ in range(parts - 1):
        found.append(x.astype(jnp.bfloat16))
        x = x - found[-1].astype(jnp.float32)
    return (*found, x.astype(jnp.bfloat16))


def tiles_of(ref):
    """The parts of a tile in shared memory, (parts, rows, columns)."""
    return tuple(ref.at[i] for i in range(ref.shape[0]))


def transposed(tiles):
    return tuple(tile.transpose((1, 0)) for tile in tiles)


def load(tiles):
    """The tile that parts make, in registers: bfloat16 where there is one, else float32."""
    first, *others = (plgpu.load(tile, layout=WGMMA) for tile in tiles)
    for other in others:
        first = first.astype(jnp.float32) + other.astype(jnp.float32)
    return first


class Products:
    """Products of operands in parts, awaited one by one, by the number of those that were started since.

    No wait leaves more in flight than the last one and what was started since: else ptxas takes accumulators that were
    awaited for those of products in flight, and lets no two products overlap.
    """

    def __init__(self, mma: Mma, parts: int):
        self.mma, self.parts = mma, parts
        self._started, self._in_flight = 0, 0
        self._until = {}

    def registers(self, acc, x, tiles, *, parts: int | None = None):
        """acc += x y with x in registers, and the tiles of the parts of y; parts: fewer leave out small products."""
        self._start(self.mma.registers, acc, split(x, self.parts), tiles, parts)

    def tiles(self, acc, x, y, *, parts: int | None = None):
        """acc += x y, both tiles of parts."""
        self._start(plgpu.wgmma, acc, x, y, parts)

    def _start(self, multiply, acc, x, y, parts: int | None):
        before = self._started
        for i, left in enumerate(x):
            for j, right in enumerate(y):
                if i + j < (parts or self.parts):
                    multiply(acc, left, right)
                    self._started += 1
        self._until[id(acc)] = self._started
        self._last = self._started - before
        self._in_flight += self._last

    def _wait(self, most: int) -> int:
        self._in_flight = min(most, self._in_flight, MOST_IN_FLIGHT)
        return self._in_flight

    def load(self, acc, *, alone: bool = False):
        """The value of an accumulator, once all products that were started for it are there; alone: all of any."""
        behind = 0 if alone else self._started - self._until[id(acc)]
        return plgpu.wgmma_accumulator_load(acc, wait_n=self._wait(behind))

    def await_all(self):
        """Frees the registers of all operands."""
        plgpu.wgmma_wait(self._wait(0))

    def await_all_but_last(self):
        """Frees the registers of the operands of all products but the last."""
        plgpu.wgmma_wait(self._wait(self._last))
