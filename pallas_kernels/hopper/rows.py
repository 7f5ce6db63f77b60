"""Hopper kernels: rows of (64, n) register tiles, exchanged, selected, and multiplied within warps.

In the layout of wgmma each of four warps w has 16 rows 16 w + 8 r + l; l is a lane's quad, r one of its two registers.
Rows that differ in binary digit 0, 1 or 2 of their index are exchanged by shuffles, in digit 3 within a lane, in digit
4 or 5 through shared memory. Products within a warp use m16n8k16, whose operands have the same register layout. Every
function has a form for interpret mode.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, math, vector

from pallas_kernels.hopper.tiles import WGMMA

DIGITS = 6
PIECE_ROWS = 16
"""Rows per warp."""
_MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
    "{$10, $11, $12, $13};"
)
_TRANSPOSE = "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;"


class Rows:
    """Operations on register tiles: lists, of length n / 8, of lists of two rows r of pairs of numbers.

    totals: shared (4 warpgroups, 64) float32, for `advance`. interpreted: whether tiles are arrays.
    """

    def __init__(self, totals: Any, interpreted: bool):
        self.totals, self.interpreted = totals, interpreted

    def advance(self, own, other, digit: int, column: int):
        """One level of `Decays`: longer = own * (own * other of the row whose index differs in the digit).

        In rows whose digit equals the next one, the first result is `longer` and the second `other`; elsewhere they are
        exchanged. Digit 4 writes products of 16 rows to shared memory from `column` on, from which digit 5 computes
        those of 32; no other reader may be active.
        """
        if self.interpreted:
            longer = own * (own * other).reshape(-1, 2, 1 << digit, own.shape[1])[:, ::-1].reshape(own.shape)
            digits = digit, digit + 1
            return self.choose(digits, other, longer), self.choose(digits, longer, other)

        def run(ref, own, other):
            odd = _odd([x for x in (digit, digit + 1) if x not in (3, DIGITS)])
            others = _others(ref, own, other, digit, column) if digit > 3 else None
            found = [], []
            for n, (x, y) in enumerate(zip(own, other, strict=True)):
                both = [others[n]] * 2 if others else list(map(arith.mulf, x, y))
                both = [utils.shfl_bfly(z, 4 << digit) for z in both] if digit < 3 else both[::-1]
                longer = list(map(arith.mulf, x, both))
                flip = [r == 1 and digit in (2, 3) for r in range(2)]
                found[0].append([_select(odd, flip[r], y[r], longer[r]) for r in range(2)])
                found[1].append([_select(odd, flip[r], longer[r], y[r]) for r in range(2)])
            return found

        return _inline(run, ((own.shape[1], own.dtype),) * 2, own, other, ref=self.totals)

    def choose(self, digits: tuple[int, ...], x, y):
        """Rows of x if an odd number of the digits are 1, else of y; x or y may be a number."""
        like = y if isinstance(x, float) else x
        if self.interpreted:
            row = lax.broadcasted_iota(jnp.int32, like.shape, 0)
            odd = sum((row >> digit) & 1 for digit in digits) % 2 == 1
            return jnp.where(odd, *(jnp.full(like.shape, z, like.dtype) if isinstance(z, float) else z for z in (x, y)))

        def run(*tiles):
            odd, given = _odd([digit for digit in digits if digit != 3]), iter(tiles)

            def number(z):
                return [[_number(z, like.dtype)] * 2] * len(tiles[0])

            pairs = zip(*(number(z) if isinstance(z, float) else next(given) for z in (x, y)), strict=True)
            return ([[_select(odd, r == 1 and 3 in digits, a[r], b[r]) for r in range(2)] for a, b in pairs],)

        return _inline(run, ((like.shape[1], like.dtype),), *(z for z in (x, y) if not isinstance(z, float)))[0]

    def add(self, digit: int, x, y, z):
        """Adds z to x in rows whose digit is 1, and to y in the other rows."""
        if self.interpreted:
            return x + self.choose((digit,), z, 0.0), y + self.choose((digit,), 0.0, z)

        def run(x, y, z):
            odd = None if digit == 3 else _odd([digit])
            if odd is None:
                return [[a, arith.addf(b, d)] for (a, b), (_, d) in zip(x, z, strict=True)], [
                    [arith.addf(a, c), b] for (a, b), (c, _) in zip(y, z, strict=True)
                ]
            one, zero = (_number(value, jnp.float32) for value in (1.0, 0.0))
            masks = _either(odd, one, zero), _either(odd, zero, one)
            return [
                [
                    [math.fma(c, mask, a) for a, c in zip(pair, found, strict=True)]
                    for pair, found in zip(w, z, strict=True)
                ]
                for mask, w in zip(masks, (x, y), strict=True)
            ]

        return _inline(run, ((x.shape[1], x.dtype),) * 2, x, y, z)

    def half(self, x, i: int):
        """Half i of the columns."""
        width = x.shape[1] // 2
        if self.interpreted:
            return x[:, i * width :][:, :width]
        return _inline(lambda x: (x[len(x) // 2 * i :][: len(x) // 2],), ((width, x.dtype),), x)[0]

    def concatenate(self, x, y):
        """Concatenates columns."""
        if self.interpreted:
            return jnp.concatenate([x, y], axis=1)
        return _inline(lambda x, y: (x + y,), ((x.shape[1] + y.shape[1], x.dtype),), x, y)[0]

    def within(self, x, y):
        """Products x_i.y_j of rows i and j of a warp: (64, 16) float32, from bfloat16 (64, n)."""
        if self.interpreted:
            x, y = (z.astype(jnp.float32).reshape(-1, PIECE_ROWS, z.shape[1]) for z in (x, y))
            return jnp.einsum("wik,wjk->wij", x, y).reshape(-1, PIECE_ROWS)

        def run(x, y=None):
            x, y = _integers(x), _integers(y or x)
            found = []
            for column in range(2):
                acc = [utils.c(0.0, ir.F32Type.get())] * 4
                for n in range(0, len(x), 2):
                    acc = _mma([*x[n], *x[n + 1]], [y[n][column], y[n + 1][column]], acc)
                found.append(_pairs(acc))
            return (found,)

        return _inline(run, ((PIECE_ROWS, jnp.float32),), *((x,) if x is y else (x, y)))[0]

    def multiply(self, a, x, add=None):
        """add + a x within each warp: a (64, 16), x (64, n) bfloat16, add (64, n) float32 or None for zeros."""
        if self.interpreted:
            a, y = (z.astype(jnp.float32).reshape(-1, PIECE_ROWS, z.shape[1]) for z in (a, x))
            found = jnp.einsum("wij,wjk->wik", a, y).reshape(x.shape)
            return found if add is None else found + add

        def run(a, x, add=None):
            ((top, bottom), (right, last)), x = _integers(a), _integers(x)
            found = []
            for n, pair in enumerate(x):
                rows = [utils.inline_ptx(_TRANSPOSE, z, result_types=_i32(), convergent=True) for z in pair]
                zero = [utils.c(0.0, ir.F32Type.get())] * 4
                acc = [_element(z, i) for z in add[n] for i in range(2)] if add else zero
                found.append(_pairs(_mma([top, bottom, right, last], rows, acc)))
            return (found,)

        return _inline(run, ((x.shape[1], jnp.float32),), a, x, *() if add is None else (add,))[0]

    def diagonal(self, x):
        """Columns of the warp's own rows: (64, 64) -> (64, 16)."""
        if self.interpreted:
            return jnp.einsum("winj,nw->wij", *_blocks(x)).reshape(-1, PIECE_ROWS)

        def run(x):
            found = x[:2]
            for w, at in list(enumerate(_warps()))[1:]:
                found = [[_either(at, x[2 * w + n][r], found[n][r]) for r in range(2)] for n in range(2)]
            return (found,)

        return _inline(run, ((PIECE_ROWS, x.dtype),), x)[0]

    def across(self, x, digit: int):
        """Keeps entries of (64, 64) whose row and column differ first in this digit, 4 or 5; zeros elsewhere."""
        if self.interpreted:
            i, j = (lax.broadcasted_iota(jnp.int32, x.shape, axis) >> digit for axis in range(2))
            return jnp.where((i ^ j) == 1, x, jnp.zeros_like(x))

        def run(x):
            zero, found = _number(0.0, x_dtype), []
            for n, pair in enumerate(x):
                found.append([zero] * 2)
                for w, at in enumerate(_warps()):
                    if (w ^ n // 2) >> (digit - 4) == 1:
                        found[-1] = [_either(at, z, old) for z, old in zip(pair, found[-1], strict=True)]
            return (found,)

        x_dtype = x.dtype
        return _inline(run, ((x.shape[1], x.dtype),), x)[0]

    def beyond(self, later, earlier, last, every, column: int):
        """Sums over the warps of a warpgroup, of values that are equal in the rows of a warp.

        Adds `later` of later warps, `earlier` of earlier warps, and `last` of the sibling of the two middle warps; also
        returns the sum of `every` over all warps. column: see `advance`; the memory is not shared with it.
        """
        if self.interpreted:
            warp = lax.broadcasted_iota(jnp.int32, later.shape, 0) // PIECE_ROWS
            found, all_ = jnp.zeros_like(later), jnp.zeros_like(later)
            for w in range(4):

                def of(z, w=w):
                    return jnp.broadcast_to(z[w * PIECE_ROWS][None], z.shape)

                found = found + jnp.where(warp < w, of(later), jnp.where(warp > w, of(earlier), 0.0))
                found = found + (jnp.where(warp == {0: 1, 3: 2}[w], of(last), 0.0) if w in (0, 3) else 0.0)
                all_ = all_ + of(every)
            return found, all_

        def run(ref, *tiles):
            at = _Places(column, len(tiles[0]))
            for place, tile in enumerate(tiles, 1):
                at.write(ref, tile, place)
            utils.warpgroup_barrier()
            warp, all_ = arith.andi(at.warp, _c(3)), at.read(ref, _c(16))
            middle = arith.andi(arith.xori(warp, arith.shrui(warp, _c(1))), _c(1))  # 1 for warps 1 and 2
            middle = arith.cmpi(arith.CmpIPredicate.ne, middle, _c(0))
            zero, siblings = _number(0.0, jnp.float32), at.read(ref, arith.addi(arith.xori(warp, _c(1)), _c(12)))
            found = [_either(middle, x, zero) for x in siblings]
            for step in range(1, 4):
                other = arith.xori(warp, _c(step))
                after = arith.cmpi(arith.CmpIPredicate.ugt, other, warp)
                values = at.read(ref, arith.addi(other, arith.select(after, _c(4), _c(8))))
                found = list(map(arith.addf, found, values))
                all_ = list(map(arith.addf, all_, at.read(ref, _c(16 + step))))
            return [[x] * 2 for x in found], [[x] * 2 for x in all_]

        return _inline(run, ((later.shape[1], jnp.float32),) * 2, later, earlier, last, every, ref=self.totals)

    def join(self, within, near, far, *, upper: bool):
        """Joins (64, 64): `within` on the diagonal; below it (upper: above), `near` inside blocks of 32, else `far`."""
        if self.interpreted:
            i, j = (lax.broadcasted_iota(jnp.int32, near.shape, axis) // PIECE_ROWS for axis in range(2))
            beyond = jnp.where(i < j if upper else i > j, jnp.where(i >> 1 == j >> 1, near, far), 0.0)
            return jnp.where(i == j, jnp.concatenate([within] * 4, axis=1), beyond)

        def run(within, near, far):
            at, zero = _warps(), _number(0.0, jnp.float32)

            def pick(n, r):
                """Value for this warp, of columns of the rows of warp p."""
                p, found = n // 2, zero
                for w in range(4):
                    if w == p:
                        found = _either(at[w], within[n % 2][r], found)
                    elif (w < p) == upper:
                        found = _either(at[w], (near if w // 2 == p // 2 else far)[n][r], found)
                return found

            return ([[pick(n, r) for r in range(2)] for n in range(8)],)

        return _inline(run, ((near.shape[1], jnp.float32),), within, near, far)[0]


def _inline(function, outputs, *arrays, ref=None):
    """Applies function([ref,] *tiles of registers); returns arrays (64, width) of dtype."""
    refs = () if ref is None else (ref,)

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(),) * len(refs) + (WGMMA,) * len(arrays),
        return_type=tuple(plgpu.ShapeDtypeStruct((64, width), dtype, layout=WGMMA) for width, dtype in outputs),
    )
    def run(ctx, *operands):
        del ctx
        fragments = operands[len(refs) :]
        layout = fragments[0].layout

        def array(tile, width):
            registers = np.empty((len(tile), 2), object)
            for n, pair in enumerate(tile):
                registers[n] = pair
            registers = registers.reshape(layout.registers_shape((64, width)))
            return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)

        tiles = function(*operands[: len(refs)], *(x.registers.reshape(-1, 2).tolist() for x in fragments))
        return tuple(array(tile, width) for tile, (width, _) in zip(tiles, outputs, strict=True))

    return run(*refs, *arrays)


class _Places:
    """Positions of a lane's columns in shared memory (warps, 64), from a first column."""

    def __init__(self, column: int, pairs: int):
        self.index = lambda value: arith.index_cast(ir.IndexType.get(), value)
        self.thread = utils.thread_idx()
        self.warp, first = arith.shrui(self.thread, _c(5)), arith.shli(arith.andi(self.thread, _c(3)), _c(1))
        self.columns = [self.index(arith.addi(first, _c(column + 8 * n))) for n in range(pairs)]

    def read(self, ref, row):
        pair = ir.VectorType.get((2,), ir.F32Type.get())
        return [vector.load(pair, ref, [self.index(row), at]) for at in self.columns]

    def write(self, ref, tile, place: int = 0):
        """Writes the first row of each warp's tile, at row 4 place + warp."""
        first = arith.cmpi(arith.CmpIPredicate.ult, arith.andi(self.thread, _c(31)), _c(4))
        row = self.index(arith.addi(arith.andi(self.warp, _c(3)), _c(4 * place)) if place else self.warp)
        with utils.when(first):
            for at, (x, _) in zip(self.columns, tile, strict=True):
                vector.store(x, ref, [row, at])


def _others(ref, own, other, digit: int, column: int):
    """Products through shared memory: for digit 4 from the sibling warp, for 5 from the other two warps."""
    at = _Places(column, len(own))
    if digit == 4:
        at.write(ref, [list(map(arith.mulf, x, y)) for x, y in zip(own, other, strict=True)])
        utils.warpgroup_barrier()
        return at.read(ref, arith.xori(at.warp, _c(1)))
    row = arith.andi(arith.xori(at.warp, _c(2)), _c(-2))
    return list(map(arith.mulf, at.read(ref, row), at.read(ref, arith.addi(row, _c(1)))))


def _mma(a, b, acc):
    """acc + a b in a warp, (16, 8) = (16, 16) (16, 8), with pairs of bfloat16 as integers."""
    return list(utils.inline_ptx(_MMA, *a, *b, *acc, result_types=[ir.F32Type.get()] * 4, convergent=True))


def _pairs(numbers):
    return [vector.from_elements(ir.VectorType.get((2,), ir.F32Type.get()), numbers[i : i + 2]) for i in (0, 2)]


def _element(pair, i: int):
    return vector.extract(pair, dynamic_position=[], static_position=ir.DenseI64ArrayAttr.get([i]))


def _integers(tile):
    return [[utils.bitcast(x, _i32()) for x in pair] for pair in tile]


def _warps():
    """For each of four warps, whether it is this one."""
    warp = arith.andi(arith.shrui(utils.thread_idx(), _c(5)), _c(3))
    return [arith.cmpi(arith.CmpIPredicate.eq, warp, _c(n)) for n in range(4)]


def _blocks(x):
    """x as (warps, 16, warps, 16), and a mask of the diagonal."""
    n = x.shape[0] // PIECE_ROWS
    return x.reshape(n, PIECE_ROWS, n, PIECE_ROWS), jnp.eye(n, dtype=x.dtype)


def _odd(digits):
    """Whether an odd number of digits (except digit 3) of the lane's rows are 1; None: never."""
    thread, bits = utils.thread_idx(), None
    for digit in digits:
        bit = arith.shrui(thread, _c(digit + 2 if digit < 3 else digit + 1))
        bits = bit if bits is None else arith.xori(bits, bit)
    return None if bits is None else arith.cmpi(arith.CmpIPredicate.ne, arith.andi(bits, _c(1)), _c(0))


def _select(odd, flipped: bool, x, y):
    """x if odd, else y; flipped: exchanged."""
    if flipped:
        x, y = y, x
    return y if odd is None else _either(odd, x, y)


def _either(condition, x, y):
    """Selects one of two pairs; bfloat16 pairs are one register."""
    pair = x.type
    whole = pair if pair.element_type == ir.F32Type.get() else _i32()
    return utils.bitcast(arith.select(condition, utils.bitcast(x, whole), utils.bitcast(y, whole)), pair)


def _number(value: float, dtype):
    """A pair of it."""
    kind = ir.BF16Type.get() if dtype == jnp.bfloat16 else ir.F32Type.get()
    return vector.broadcast(ir.VectorType.get((2,), kind), utils.c(value, kind))


def _i32():
    return ir.IntegerType.get_signless(32)


def _c(value: int):
    return utils.c(value, _i32())
