"""Inverse of I + A on Hopper, with A (64, 64) strictly lower triangular, in the registers of one warpgroup.

By blocks: with T_s the inverse of the diagonal blocks of size s, and A_s the part of A between two of them,

    T_2s = T_s - T_s A_s T_s                T_1 = I

which is as stable as substitution: no power of A appears (for a repeated key with beta 2, A^32 has entries of 2e27). Up
to s = 8 the products are within the 16 rows of a warp (`Rows.multiply`); s = 16 and 32 use wgmma.

Operands of matmuls are sums of two bfloat16 numbers, x = high + low, and a product takes three matmuls.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.levels import CHUNK, half_tile
from pallas_kernels.hopper.rows import PIECE_ROWS, Rows
from pallas_kernels.hopper.tiles import NARROW, WGMMA, Mma

HALF = CHUNK // 2


def scratch(interpret) -> dict:
    """Shared memory of `inverse`: two bfloat16 numbers for each entry of A and T that wgmma reads."""
    narrow = plgpu.SMEM((2, CHUNK, PIECE_ROWS), jnp.bfloat16, transforms=NARROW)
    found = {"blocks_s": narrow, "below_s": half_tile(2), "top_s": half_tile(2)}
    return found if interpret is None else found | {"half_staging": half_tile(1)}


def inverse(r, rows: Rows, mma: Mma, a, zero):
    """(I + a)^-1 (64, 64) float32, for a strictly lower triangular. zero: 0 that the compiler does not know.

    Barriers: one `commit_smem` orders the stores of `blocks_s` and `below_s` before the wgmma that read them, another
    one those of `top_s`. The next writes follow a later `commit_smem`, after these wgmma.
    """
    blocks = _of_warps(rows, rows.diagonal(a), zero)
    _store(r.blocks_s, blocks)
    _store(r.below_s, rows.half(a, 0))
    plgpu.commit_smem()

    # s = 16: rows of a warp and columns of the warp before it.
    sibling = _fold(rows, rows.across(a, 4))
    left = _times(rows, _split(blocks), _split(sibling))
    left = rows.across(_repeat(rows, left, 4), 4)
    near = -_products(mma, PIECE_ROWS, left, [r.blocks_s.at[i] for i in range(2)])
    none = plgpu.layout_cast(jnp.zeros((CHUNK, CHUNK), jnp.float32), WGMMA)
    t = rows.join(blocks, _repeat(rows, near, 4), none, upper=False)

    # s = 32: the last 32 rows and the first 32 columns.
    _store(r.top_s, rows.half(t, 0))
    plgpu.commit_smem()
    first, last = pl.ds(0, HALF), pl.ds(HALF, HALF)
    left = _products(mma, HALF, rows.half(t, 1), [r.below_s.at[i, last] for i in range(2)])
    far = -_products(mma, HALF, left, [r.top_s.at[i, first] for i in range(2)])
    return rows.join(blocks, t, _repeat(rows, far, 2), upper=False)


def _of_warps(rows: Rows, a, zero):
    """Inverses (64, 16) of the blocks of 16 rows of I + a."""
    i, j = (plgpu.broadcasted_iota(jnp.int32, (CHUNK, PIECE_ROWS), axis, layout=WGMMA) for axis in range(2))
    apart = (i & (PIECE_ROWS - 1)) ^ (j + zero)
    split, t = _split(a), jnp.where(apart == 0, 1.0, jnp.where(apart == 1, -a, 0.0))
    for level in range(1, 4):
        parts = _split(t)
        added = _times(rows, _split(_times(rows, parts, split)), parts)
        t = jnp.where(apart >> level == 1, -added, t)
    return t


def _split(x):
    """x as a sum of two bfloat16 numbers."""
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)


def _times(rows: Rows, x, y):
    """x y within each warp, for pairs from `_split`."""
    found = rows.multiply(x[1], y[0])
    return rows.multiply(x[0], y[0], rows.multiply(x[0], y[1], found))


def _store(ref, x):
    for i, part in enumerate(_split(x)):
        ref[i] = part


def _repeat(rows: Rows, x, times: int):
    """Concatenates x with itself."""
    while times > 1:
        x, times = rows.concatenate(x, x), times // 2
    return x


def _fold(rows: Rows, x):
    """Sum of the four blocks of 16 columns."""
    for _ in range(2):
        x = rows.half(x, 0) + rows.half(x, 1)
    return x


def _products(mma: Mma, width: int, x, parts):
    """x y (64, width), with x in registers and y in shared memory in two parts."""
    high, low = _split(x)

    def run(acc):
        mma.registers(acc, low, parts[0])
        mma.registers(acc, high, parts[1])
        mma.registers(acc, high, parts[0])
        return acc[...]

    return pl.run_scoped(run, plgpu.ACC((CHUNK, width), jnp.float32))
