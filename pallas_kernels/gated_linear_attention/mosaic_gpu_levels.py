"""Inside the Hopper kernels for decays per channel: one chunk of 64 tokens, 64 channels of its keys, one warpgroup.

Two tokens j < i of a chunk differ in their binary digits; let `size` be the highest in which they do. As on the TPU
(`mosaic_tpu_levels.py`), the decay between them is a product of two, to and from the middle of a block of 2 size
tokens, and a token is a query or a key of its block by that digit:

    E_i = sum g over [start of its half, i] for a query, over [i + 1, end of its half] for a key         M = exp(E) x
    exp(sum g over j + 1 .. i) q_i k_j = (M M^T)_ij

Here the sums are products of tensor cores: E = L g, L of 0 and 1 (`within`), which shared memory holds for all sizes
but 1, where E is g or 0. Log decays are two bfloat16 numbers, 16 bits together: a weight e^-x is off by at most
2^-17 x e^-x, less than the rounding of its operand. The cotangents of E return by L^T, rounded to bfloat16: no two of
them cancel but in the gradient itself.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, WGMMA, WIDE, Mma, columns_to, rows_to

CHUNK = 64
SIZES = (1, 2, 4, 8, 16, 32)
LOG2_E = np.float32(1 / np.log(2))
FLOATS = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))  # (., 64) float32 tiles


def tile(*slots):
    """Shared bfloat16 (*slots, 64, 64) tiles."""
    return plgpu.SMEM((*slots, CHUNK, CHUNK), jnp.bfloat16, transforms=WIDE)


def float_tile(*slots):
    return plgpu.SMEM((*slots, CHUNK, CHUNK), jnp.float32, transforms=FLOATS)


def level_scratch(warpgroups: int, interpret, *, levels: int = 5):
    """Scratch of `Chunk`, but for its `parts`; levels: how many L have a place."""
    found = {"operand_s": tile(warpgroups), "index_s": plgpu.SMEM((warpgroups, 2, CHUNK), jnp.int32)}
    if levels:
        found["levels_s"] = tile(levels)
    return found if interpret is None else found | {"staging": tile(warpgroups)}


def load(ref):
    """A tile in registers, float32."""
    return plgpu.load(ref, layout=WGMMA).astype(jnp.float32)


class Chunk:
    """Sums and products of a warpgroup. parts: its two tiles for log decays; operand: for what products read."""

    def __init__(self, r, warpgroup, parts, interpret):
        self.r, self.warpgroup, self.parts, self.operand = r, warpgroup, parts, r.operand_s.at[warpgroup]
        self.mma = Mma(None if interpret is None else (r.staging,), warpgroup)
        self.turn: Any = jnp.int32(0)
        self.zero: Any = 0
        self.stored = r.levels_s.shape[0] if hasattr(r, "levels_s") else 0

    def write_indices(self):
        """Writes 0 .. 63 twice, before `i` and `j` are read."""
        for turn in range(2):
            self.r.index_s[self.warpgroup, turn] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW)
        plgpu.commit_smem()

    def write_levels(self):
        """Writes L of the smallest sizes but 1, as many as have a place, and the levels of pairs if they have one."""
        for level in range(self.stored):
            self.r.levels_s[level] = self._sums_within(SIZES[level + 1])
        if hasattr(self.r, "pairs_s"):
            apart = [jnp.where((self.i ^ self.j) >= size, 1.0, 0.0) for size in SIZES]
            self.r.pairs_s[...] = (sum(apart) - 1.0).astype(jnp.bfloat16)
        plgpu.commit_smem()

    def sums_within(self, level: int, *, transposed: bool = False):
        """L of a level that is not the first: a tile, or registers where it has no place."""
        if level > self.stored:
            return self._sums_within(SIZES[level], transposed=transposed)
        tile = self.r.levels_s.at[level - 1 + self.zero]
        return tile.transpose((1, 0)) if transposed else tile

    def _sums_within(self, size: int, *, transposed: bool = False):
        i, j = (self.j, self.i) if transposed else (self.i, self.j)
        return as_operand(((i ^ j) < size) & ((j <= i) == ((i & size) != 0)))

    def pairs(self, level: int):
        """1 where that level is the one of a pair, else 0, bfloat16; from `pairs_s`, the levels of all pairs, if there
        is place for it."""
        if not hasattr(self.r, "pairs_s"):
            apart = self.i ^ self.j
            return as_operand((apart >= SIZES[level]) & (apart < 2 * SIZES[level]))
        other = plgpu.load(self.r.pairs_s, layout=WGMMA) - jnp.bfloat16(level)
        return jnp.maximum(jnp.bfloat16(1) - other * other, jnp.bfloat16(0))

    @property
    def _index(self):
        return self.r.index_s.at[self.warpgroup, lax.rem(self.turn, jnp.int32(2))]

    @property
    def i(self):
        """Row of each element of a tile. From shared memory, in turns of chunks: masks that do not depend on the chunk
        would be computed before the loop, and hold registers through it."""
        return rows_to(plgpu.load(self._index, layout=PER_ROW))

    @property
    def j(self):
        return columns_to(plgpu.load(self._index, layout=PER_COLUMN))

    def rows(self, size: int, *, second: bool):
        """1 in the rows of the queries of blocks of 2 size tokens, or of the keys, else 0. Times it is less work than
        a choice, above all of bfloat16."""
        row = plgpu.load(self._index, layout=PER_ROW)
        return rows_to(jnp.where((row & size) != 0, float(second), float(not second)))

    def only(self, x, size: int, *, second: bool):
        """A bfloat16 tile with zeros in the other rows."""
        return x * self.rows(size, second=second).astype(jnp.bfloat16)

    def store(self, x):
        """Writes a tile for the next product, when all warps have left the one before."""
        plgpu.commit_smem()
        self.operand[...] = x.astype(jnp.bfloat16)
        plgpu.commit_smem()

    def split(self, decay):
        """Stores log decays of base 2 as sums of two parts."""
        x = plgpu.load(decay, layout=WGMMA) * LOG2_E
        high = x.astype(jnp.bfloat16)
        self.parts[0][...] = high
        self.parts[1][...] = (x - high.astype(jnp.float32)).astype(jnp.bfloat16)
        plgpu.commit_smem()

    def factor(self, mask):
        """exp of sums of log decays: of the tokens `mask` (64, 64), an operand or a tile."""
        return jnp.exp2(self.product(mask, *self.parts))

    def product(self, x, *ys):
        """x (y + ..), x in registers or a tile."""
        return self.products(*((x, y) for y in ys))

    def products(self, *pairs):
        """The sum of x y over pairs."""

        def run(acc):
            self.add(acc, *pairs)
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((CHUNK, CHUNK), jnp.float32))

    def add(self, acc, *pairs):
        for x, y in pairs:
            (plgpu.wgmma if hasattr(x, "at") and not isinstance(x, jnp.ndarray) else self.mma.registers)(acc, x, y)

    def since(self):
        """exp of the sum of log decays from the start of the chunk to each token."""
        return self.factor(as_operand(self.j <= self.i))

    def until(self):
        """exp of the sum of log decays after each token."""
        return self.factor(as_operand(self.j > self.i))

    def levels(self, q, k, decay):
        """For each size: it, the queries and keys of its blocks (64, 64) bfloat16, and exp(E)."""
        for level, size in enumerate(SIZES):
            if size == 1:
                factor = jnp.exp2(load(decay) * (self.rows(size, second=True) * LOG2_E))
            else:
                factor = self.factor(self.sums_within(level))
            x = sum(self.only(plgpu.load(x, layout=WGMMA), size, second=x is q) for x in (q, k))
            yield size, x.astype(jnp.float32), factor

    def scores(self, q, k, decay, *, reverse: bool):
        """P (64, 64) float32, in reverse its transpose.

        Queries are zeros among the keys and keys among the queries, so that a product adds nothing to the pairs of
        smaller sizes; what it adds to those of greater ones is taken away before theirs. Every product adds to the last
        one: were the results joined by choices, ptxas would keep them all in registers until the end.
        """
        rows, columns = (k, q) if reverse else (q, k)
        found = self.product(rows, columns.transpose((1, 0)))
        for size, x, factor in self.levels(q, k, decay):
            operand = (x * factor).astype(jnp.bfloat16)
            self.store(self.only(operand, size, second=reverse))
            pair = self.only(operand, size, second=not reverse), self.operand.transpose((1, 0))
            near = jnp.where((self.i ^ self.j) < size, found, 0.0)
            (found,) = self.mma.update((near,), lambda acc, pair=pair: self.add(acc, pair))
        return found


def as_operand(mask):
    return jnp.where(mask, 1.0, 0.0).astype(jnp.bfloat16)
