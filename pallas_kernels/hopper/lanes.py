"""Hopper kernels: pairs of channels in the registers of a warpgroup, exchanged within quads of lanes.

In the layout of wgmma the four lanes of a quad hold a row, each a pair of every 8 channels.
"""

import dataclasses

import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, math, vector

SWAPPED, STRAIGHT = 0x1032, 0x3210  # selectors of prmt: the 16-bit halves of a register


LOW, HIGH = 0x5410, 0x7632  # ... of two registers


def _i32(value: int):
    return utils.c(value, ir.IntegerType.get_signless(32))


@dataclasses.dataclass(frozen=True)
class Packed:
    """A pair of bf16 in a 32-bit register, for each of a lane's two rows."""

    rows: tuple

    def map(self, function):
        return Packed(tuple(map(function, self.rows)))


@dataclasses.dataclass(frozen=True)
class Wide:
    """A pair of float32 registers, for each of a lane's two rows."""

    rows: tuple

    def map(self, function):
        """Applies the function to every register."""
        return Wide(tuple(tuple(map(function, pair)) for pair in self.rows))


class RegisterLanes:
    """`mosaic_gpu_features.ArrayLanes` for the fragments of one warpgroup, in the layout of wgmma."""

    def __init__(self, layout):
        self.layout = layout
        self.lane = arith.andi(utils.thread_idx(), _i32(3))

    def tiles(self, x: mgpu.FragmentedArray):
        registers = x.registers.reshape(-1, 2)
        if x.mlir_dtype == ir.BF16Type.get():
            return [Packed(tuple(utils.bitcast(r, _i32(0).type) for r in rows)) for rows in registers]
        return [Wide(tuple(tuple(_element(r, i) for i in range(2)) for r in rows)) for rows in registers]

    def join(self, tiles):
        registers = np.empty((len(tiles), 2), object)
        for i, tile in enumerate(tiles):
            registers[i] = [_vector(r) for r in tile.rows]
        return mgpu.FragmentedArray(
            _registers=registers.reshape(self.layout.registers_shape((64, 8 * len(tiles)))),
            _layout=self.layout,
            _is_signed=None,
        )

    def wide(self, x):
        if isinstance(x, Wide):
            return x
        f32 = ir.F32Type.get()

        def low(r):
            return utils.bitcast(arith.shli(r, _i32(16)), f32)

        def high(r):
            return utils.bitcast(arith.andi(r, _i32(-65536)), f32)

        return Wide(tuple((low(r), high(r)) for r in x.rows))

    def add(self, x: Wide, y: Wide):
        return _each(arith.addf, x, y)

    def multiply(self, x, y):
        if isinstance(x, Wide):
            return _each(arith.mulf, x, y)
        products = (arith.mulf(_vector(r), _vector(s)) for r, s in zip(x.rows, y.rows, strict=True))
        return Packed(tuple(utils.bitcast(p, _i32(0).type) for p in products))

    def multiply_add(self, x: Wide, y: Wide, z: Wide):
        return _each(math.fma, x, y, z)

    def half(self, x):
        if isinstance(x, Wide):
            return x.map(lambda r: arith.mulf(r, utils.c(0.5, ir.F32Type.get())))
        return self.multiply(x, Packed((_i32(0x3F003F00),) * 2))

    def zero(self, like):
        zero = utils.c(0.0, ir.F32Type.get()) if isinstance(like, Wide) else _i32(0)
        return like.map(lambda _: zero)

    def one(self, like):
        first = arith.cmpi(arith.CmpIPredicate.eq, self.lane, _i32(0))
        if isinstance(like, Wide):
            zero, one = (utils.c(x, ir.F32Type.get()) for x in (0.0, 1.0))
            return Wide(((arith.select(first, one, zero), zero),) * 2)
        return Packed((arith.select(first, _i32(0x3F80), _i32(0)),) * 2)

    def swap(self, x):
        if isinstance(x, Wide):
            return Wide(tuple(pair[::-1] for pair in x.rows))
        return x.map(lambda r: utils.prmt(r, r, _i32(SWAPPED)))

    def exchange(self, x, e: int):
        return x.map(lambda r: utils.shfl_bfly(r, e))

    def choose(self, x, e: int):
        upper = arith.cmpi(arith.CmpIPredicate.ne, arith.andi(self.lane, _i32(2 if e & 2 else 1)), _i32(0))
        if isinstance(x, Wide):
            return Wide(tuple((arith.select(upper, s, r), arith.select(upper, r, s)) for r, s in x.rows))
        selector = arith.select(upper, _i32(SWAPPED), _i32(STRAIGHT))
        return x.map(lambda r: utils.prmt(r, r, selector))

    def pack(self, x, y, i: int):
        if isinstance(x, Wide):
            return Wide(tuple((r[i], s[i]) for r, s in zip(x.rows, y.rows, strict=True)))
        selector = _i32(HIGH if i else LOW)
        return Packed(tuple(utils.prmt(r, s, selector) for r, s in zip(x.rows, y.rows, strict=True)))

    def spread(self, x: Wide, i: int):
        return Wide(tuple((pair[i],) * 2 for pair in x.rows))


def _each(operation, *values: Wide) -> Wide:
    """Applies the operation to the registers of the values, one by one."""
    rows = zip(*(value.rows for value in values), strict=True)
    return Wide(tuple(tuple(operation(*registers) for registers in zip(*pairs, strict=True)) for pairs in rows))


def _element(pair, i: int):
    return vector.extract(pair, dynamic_position=[], static_position=ir.DenseI64ArrayAttr.get([i]))


def _vector(registers):
    """A register of bf16 pairs, or two of float32, as the vector that a fragment holds."""
    if isinstance(registers, tuple):
        return vector.from_elements(ir.VectorType.get((2,), ir.F32Type.get()), registers)
    return utils.bitcast(registers, ir.VectorType.get((2,), ir.BF16Type.get()))
