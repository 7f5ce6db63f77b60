"""Hopper kernels: operands of tensor cores in parts of bfloat16, and their products in flight.

A bfloat16 number is its only part. A float32 number has two: its rounding to bfloat16 and the rounding of the rest. A
product of two such numbers is three products, a0 b0 + a0 b1 + a1 b0, summed in float32, with an error of 2^-16.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import WGMMA, Mma

MOST_IN_FLIGHT = 7
"""Groups of wgmma that a wait can leave in flight."""


def operand(x, parts: int):
    """Splits x (b, t, heads, n) in XLA into (b, t, parts * heads, n) bfloat16, first parts before second parts."""
    split = []
    for _ in range(parts - 1):
        # XLA would remove a conversion to bfloat16 and back.
        split.append(lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7))
        x = x - split[-1]
    return jnp.concatenate([part.astype(jnp.bfloat16) for part in (*split, x)], 2) if split else x


def split(x, parts: int):
    """Parts of x in registers; x is bfloat16 if there is one part, else float32."""
    found = []
    for _ in range(parts - 1):
        found.append(x.astype(jnp.bfloat16))
        x = x - found[-1].astype(jnp.float32)
    return (*found, x.astype(jnp.bfloat16))


def tiles_of(ref):
    """Parts of a tile (parts, rows, columns) in shared memory."""
    return tuple(ref.at[i] for i in range(ref.shape[0]))


def transposed(tiles):
    return tuple(tile.transpose((1, 0)) for tile in tiles)


def load(tiles):
    """Loads the sum of parts into registers: bfloat16 if there is one part, else float32."""
    first, *others = (plgpu.load(tile, layout=WGMMA) for tile in tiles)
    for other in others:
        first = first.astype(jnp.float32) + other.astype(jnp.float32)
    return first


class Products:
    """Products of operands in parts, awaited one by one.

    A wait leaves in flight at most the last product and later ones. Otherwise ptxas serializes all products.
    """

    def __init__(self, mma: Mma, parts: int):
        self.mma, self.parts = mma, parts
        self._started, self._in_flight = 0, 0
        self._until = {}

    def registers(self, acc, x, tiles, *, parts: int | None = None):
        """acc += x y, x in registers, y as tiles of its parts; fewer `parts` leave out small products."""
        self._start(self.mma.registers, acc, split(x, self.parts), tiles, parts)

    def tiles(self, acc, x, y, *, parts: int | None = None):
        """acc += x y, both as tiles of their parts."""
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
        """Value of an accumulator after all products started for it; alone: after all products."""
        since = 0 if alone else self._started - self._until[id(acc)]
        return plgpu.wgmma_accumulator_load(acc, wait_n=self._wait(since))

    def await_all(self):
        """Waits for all products, which frees the registers of their operands."""
        plgpu.wgmma_wait(self._wait(0))

    def await_all_but_last(self):
        """Waits for all products but the last."""
        plgpu.wgmma_wait(self._wait(self._last))


def zeros(rows, columns):
    return plgpu.layout_cast(jnp.zeros((rows, columns), jnp.float32), WGMMA)
