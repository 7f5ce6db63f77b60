"""Inside the Hopper kernels: tiles and features, operands of tensor cores in parts of bfloat16, products in flight.

Layouts: `mosaic_gpu_layout`.

A bfloat16 number is its only part. A float32 number is two: its rounding to bfloat16, and the rounding of what is left,
16 bits of mantissa together. A product of two such numbers is three products, a0 b0 + a0 b1 + a1 b0, summed in float32;
what is left out, and what parts do not hold, is at most 2^-16 of it. tf32 would be one product of 2^-11, of operands
that wgmma wants with K as their minor axis, which values and features are not.

The lanes of `mosaic_gpu_features` are registers here (`RegisterLanes`).
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, math, vector

from pallas_kernels.hopper.tiles import NARROW, PER_ROW, WGMMA, WIDE, Mma, iota
from pallas_kernels.taylor_attention import mosaic_gpu_features as scheme
from pallas_kernels.taylor_attention.mosaic_gpu_features import ArrayLanes
from pallas_kernels.taylor_attention.mosaic_gpu_split import CHUNK, Cut, Widths

SWAPPED, STRAIGHT = 0x1032, 0x3210  # selectors of prmt: the 16-bit halves of a register
LOW, HIGH = 0x5410, 0x7632  # ... of two registers


def on_lanes(function, *arrays, width: int, dtype, interpreted: bool):
    """function(lanes, *arrays) -> (64, width) of dtype, for (64, n) arrays in the layout of wgmma."""
    if interpreted:
        return function(ArrayLanes(jnp), *arrays).astype(dtype)

    @plgpu.inline_mgpu(
        arg_types=(WGMMA,) * len(arrays), return_type=plgpu.ShapeDtypeStruct((64, width), dtype, layout=WGMMA)
    )
    def run(ctx, *fragments):
        del ctx
        return function(RegisterLanes(fragments[0].layout), *fragments)

    return run(*arrays)


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
    """`ArrayLanes` for the fragments of one warpgroup. layout: of wgmma."""

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


MIDDLE = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64))  # (., 32 n) bf16 tiles
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
        since = 0 if alone else self._started - self._until[id(acc)]
        return plgpu.wgmma_accumulator_load(acc, wait_n=self._wait(since))

    def await_all(self):
        """Frees the registers of all operands."""
        plgpu.wgmma_wait(self._wait(0))

    def await_all_but_last(self):
        """Frees the registers of the operands of all products but the last."""
        plgpu.wgmma_wait(self._wait(self._last))


def zeros(rows, columns):
    return plgpu.layout_cast(jnp.zeros((rows, columns), jnp.float32), WGMMA)


def features(mma: Mma, x, widths: Widths, cut: Cut, *, halved: bool):
    """Columns of phi(x), of x (64, keys) in registers, both of `Widths.dtype`; halved: on the query side."""
    tiles = scheme.tiles_between(widths.groups, *cut)
    function = functools.partial(scheme.features, tiles=tiles, halved=halved)
    return on_lanes(function, x, width=cut[1] - cut[0], dtype=widths.dtype, interpreted=mma.staging is not None)


def pull_back(mma: Mma, x, u, start, widths: Widths, cut: Cut, *, halved: bool):
    """start + sum_f u_f d phi_f / d x, (64, keys) float32, over the columns of a cut; start None: zeros."""
    tiles = scheme.tiles_between(widths.groups, *cut)
    function = functools.partial(scheme.pull_back, tiles=tiles, halved=halved)
    arrays = (x, u) if start is None else (x, u, start)
    return on_lanes(function, *arrays, width=widths.keys, dtype=jnp.float32, interpreted=mma.staging is not None)


def tile(slots, width, rows=CHUNK, *, other: int | None = None):
    """Shared bf16 (*slots, rows, width) tiles that wgmma reads, and TMA fills.

    other: width of the other operand of a wgmma, where that is in shared memory too; both need one swizzle.
    """
    transforms = {16: NARROW, 64: WIDE}.get(other or width, MIDDLE)
    return plgpu.SMEM((*slots, rows, width), jnp.bfloat16, transforms=transforms)


def output_tile(width, dtype):
    """A (64, width) tile that TMA stores, 16, 32 or 64 wide in bfloat16, 16 or 32 in float32; None: 64 float32."""
    if width is None:
        return plgpu.SMEM((CHUNK,), jnp.float32)
    if dtype == jnp.bfloat16:
        return tile((), width)
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(4 * width))
    return plgpu.SMEM((CHUNK, width), dtype, transforms=transforms)


def staging_scratch(interpret, widths: Widths, warpgroups):
    """The tiles of `this_mma`."""
    return {} if interpret is None else {f"stage_{n}": tile((warpgroups,), n) for n in _staged(widths)}


def this_mma(refs, interpret, widths: Widths, warpgroup) -> Mma:
    """That of one warpgroup, with the tiles of `staging_scratch`."""
    staging = None if interpret is None else tuple(getattr(refs, f"stage_{n}") for n in _staged(widths))
    return Mma(staging, warpgroup)


def _staged(widths: Widths) -> list[int]:
    """Widths of the operands that wgmma takes from registers."""
    return sorted({widths.keys, widths.values, CHUNK, *(stop - start for start, stop in widths.read)})


def write_constants(refs):
    """Writes `ones_s`, (64, keys) with ones in column 0: times the rows of z from `keys` on it broadcasts z1; and
    `index_s`, 0 .. 63."""
    ref = refs.ones_s
    refs.index_s[...] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW).astype(jnp.float32)
    ref[...] = jnp.where(iota(ref.shape, 1) == 0, 1.0, 0.0).astype(jnp.bfloat16)
    plgpu.commit_smem()
