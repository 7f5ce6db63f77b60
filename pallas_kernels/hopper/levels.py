"""Hopper kernels with decays per channel: one chunk of 64 tokens, 64 channels of its keys, in one warpgroup.

Let `size` be the highest binary digit in which two tokens j < i of a chunk differ. As on the TPU
(`mosaic_tpu_channel.py`), the decay between them is the product of the decays to and from the middle of a block of 2
size tokens, and that digit makes a token a query or a key of its block:

    E_i = sum g over [start of its half, i] for a query, over [i + 1, end of its half] for a key         M = exp(E) x
    exp(sum g over j + 1 .. i) q_i k_j = (M M^T)_ij

exp(E) is a product of the decays of the previous level (`Decays`), so one exponential per token and channel is enough.
The scan of states sums log decays by tensor cores, as products with a mask (`Chunk.factor`), in two bfloat16 parts.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.rows import PIECE_ROWS, Rows
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, WGMMA, WIDE, Mma, columns_to, iota, rows_to, sum_products

CHUNK = 64
LEVELS = 6
SHARED_BYTES = 225 * 2**10
TILE_BYTES = 2 * CHUNK * CHUNK
LOG2_E = np.float32(1 / np.log(2))
FLOATS = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))  # (., 64) float32 tiles


def tile(*slots):
    """Shared bfloat16 (*slots, 64, 64) tiles."""
    return plgpu.SMEM((*slots, CHUNK, CHUNK), jnp.bfloat16, transforms=WIDE)


def float_tile(*slots):
    return plgpu.SMEM((*slots, CHUNK, CHUNK), jnp.float32, transforms=FLOATS)


def half_tile(*slots, dtype=jnp.bfloat16):
    """Shared (*slots, 64, 32) tiles: half of the channels."""
    width = CHUNK // 2
    half = plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(width * jnp.dtype(dtype).itemsize)
    return plgpu.SMEM((*slots, CHUNK, width), dtype, transforms=half)


def chunk_scratch(warpgroups: int, interpret):
    """Scratch of `Chunk`, without its tiles."""
    found: dict[str, Any] = {"index_s": plgpu.SMEM((warpgroups, 2, CHUNK), jnp.int32)}
    return found if interpret is None else found | {"staging": tile(warpgroups)}


def run_once(zero, function, carry):
    """Calls function(*carry) in a loop of one trip, which keeps the compiler from moving code. zero: an unknown 0."""
    return lax.fori_loop(0, 1 + zero, lambda _, carry: function(*carry), carry)


def load(ref):
    """Loads a tile into registers, in float32."""
    return plgpu.load(ref, layout=WGMMA).astype(jnp.float32)


class Chunk:
    """Sums and products of a warpgroup. parts: its two tiles for log decays; operand: its tile for operands."""

    def __init__(self, r, warpgroup, parts, operand, interpret):
        self.r, self.warpgroup, self.parts, self.operand = r, warpgroup, parts, operand
        self.mma = Mma(None if interpret is None else (r.staging,), warpgroup)
        self.turn: Any = jnp.int32(0)

    def write_indices(self):
        """Writes 0 .. 63 twice, for `i` and `j`."""
        for turn in range(2):
            self.r.index_s[self.warpgroup, turn] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW)
        plgpu.commit_smem()

    @property
    def _index(self):
        return self.r.index_s.at[self.warpgroup, lax.rem(self.turn, jnp.int32(2))]

    def zero(self):
        """0 that the compiler does not know, so it computes descriptors and addresses late, which saves registers."""
        return self._index[0]

    @property
    def i(self):
        """Row of each element of a tile, from alternating shared memory: masks that do not depend on the chunk would be
        computed before the loop and hold registers."""
        return rows_to(plgpu.load(self._index, layout=PER_ROW))

    @property
    def j(self):
        return columns_to(plgpu.load(self._index, layout=PER_COLUMN))

    def store(self, x):
        """Writes the operand tile, after all warps have left the previous one."""
        plgpu.commit_smem()
        self.operand[...] = x.astype(jnp.bfloat16)
        plgpu.commit_smem()

    def split(self, decay):
        """Stores base-2 log decays as sums of two parts."""
        x = plgpu.load(decay, layout=WGMMA) * LOG2_E
        high = x.astype(jnp.bfloat16)
        self.parts[0][...] = high
        self.parts[1][...] = (x - high.astype(jnp.float32)).astype(jnp.bfloat16)
        plgpu.commit_smem()

    def factor(self, mask):
        """exp of the sums of log decays over the tokens of `mask` (64, 64), an operand or a tile."""
        return jnp.exp2(self.product(mask, *self.parts))

    def product(self, x, *ys):
        """x (y + ..), with x in registers or a tile."""
        return self.products(*((x, y) for y in ys))

    def products(self, *pairs, width: int = CHUNK):
        """The sum of x y over pairs, (64, width)."""

        def run(acc):
            self.add(acc, *pairs)
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((CHUNK, width), jnp.float32))

    def half_products(self, pairs):
        """The sum of x y over pairs, with half of the channels of y."""
        return self.products(*pairs, width=CHUNK // 2)

    def add(self, acc, *pairs):
        for x, y in pairs:
            (plgpu.wgmma if hasattr(x, "at") and not isinstance(x, jnp.ndarray) else self.mma.registers)(acc, x, y)


class Decays:
    """Decays of one level at a time, computed as products of the previous level's decays, without new exponentials.

    own: exp(E), for queries from the start of their half of a block, for keys to its end; other: the two exchanged.
    After the last level, own is the decay to the end of the chunk, and other from its start.
    """

    def __init__(self, rows: Rows, log_decay, column: int = 0):
        decay = jnp.exp2(log_decay * LOG2_E)
        self.rows, self.level, self.column = rows, 0, column
        self.own, self.other = rows.choose((0,), decay, 1.0), rows.choose((0,), 1.0, decay)

    def next(self):
        """Advances to blocks twice as long."""
        self.own, self.other = self.rows.advance(self.own, self.other, self.level, self.column)
        self.level += 1


def scores(rows: Rows, operands, q, k, decay, zero, *, reverse: bool):
    """P (64, 64) float32, in reverse its transpose; overwrites Q with exp(a) Q, in reverse K with exp(a_c - a) K.

    Processes one half of the channels at a time, to save registers. Pairs of levels 0 to 3 are within a warp's rows;
    the others come from products of two shared operands with themselves.
    """
    found, halves = 0.0, []
    for half in range(2):
        i, j = (plgpu.broadcasted_iota(jnp.int32, (CHUNK, PIECE_ROWS), axis, layout=WGMMA) for axis in range(2))
        i, j = i & (PIECE_ROWS - 1), j + zero()
        apart, within = i ^ j, j > i if reverse else j < i

        def tokens(half=half):
            return [rows.half(plgpu.load(x, layout=WGMMA), half) for x in (q, k)]

        decays = Decays(rows, rows.half(plgpu.load(decay, layout=WGMMA), half), half * CHUNK // 2)
        wide = []
        part = jnp.where(apart == 0, rows.within(*tokens()), 0.0)
        for level in range(LEVELS):
            x = (rows.choose((level,), *tokens()).astype(jnp.float32) * decays.own).astype(jnp.bfloat16)
            if level < LEVELS - 2:
                mask = (apart >= 1 << level) & (apart < 2 << level) & within
                part = jnp.where(mask, rows.within(x, x), part)
            else:
                wide.append(x)
            decays.next()
        past = decays.own if reverse else decays.other
        wide.append((tokens()[reverse].astype(jnp.float32) * past).astype(jnp.bfloat16))
        halves.append(wide)
        found = found + part
    for slot, *both in zip((*operands, k if reverse else q), *halves, strict=True):
        slot[...] = rows.concatenate(*both)
    plgpu.commit_smem()
    near, far = sum_products(*([(x, x.transpose((1, 0)))] for x in operands))
    return rows.join(found, near, far, upper=reverse)


def as_operand(mask):
    return jnp.where(mask, 1.0, 0.0).astype(jnp.bfloat16)


class Near:
    """Masks (64, 16) of pairs of a warp's rows, bfloat16. zero: 0 from shared memory, so the compiler does not compute
    the masks before the loop."""

    def __init__(self, zero, *, hold: bool = False):
        self.zero, self.row, self.j = zero, iota((CHUNK, PIECE_ROWS), 0), iota((CHUNK, PIECE_ROWS), 1) + zero
        self.i = self.row & (PIECE_ROWS - 1)
        self.held = self.i ^ self.j if hold else None  # in registers

    def row_of(self, width: int):
        """Row of each element of a (64, width) tile."""
        return plgpu.broadcasted_iota(jnp.int32, (CHUNK, width), 0, layout=WGMMA) + self.zero

    @property
    def apart(self):
        return self.i ^ self.j if self.held is None else self.held

    def of_level(self, level: int):
        apart = self.apart
        return (apart >= 1 << level) & (apart < 2 << level)

    def pairs(self, level: int):
        return as_operand(self.of_level(level))

    def sums(self, level: int):
        """L^T: maps slopes of the level to log decays."""
        query = ((self.row & ~(PIECE_ROWS - 1) | self.j) >> level & 1) != 0
        return as_operand((self.apart < 1 << level) & ((self.i <= self.j) == query))
