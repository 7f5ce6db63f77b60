"""Features by exchanges between lanes: the scheme, and what its operations are in instructions, on an emulated warp."""

import itertools
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.hopper import lanes as registers
from pallas_kernels.taylor_attention import mosaic_gpu_features as scheme
from pallas_kernels.taylor_attention.mosaic_gpu_layout import WIDTHS
from tests.pallas_kernels.shared import full

LANES = np.arange(32)


SIZES = pytest.mark.parametrize(
    "sizes", [WIDTHS[0], *map(full, WIDTHS[1:])], ids=lambda x: f"{8 * x.groups}-{x.dtype.__name__}"
)


@SIZES
def test_every_product_is_made_once(sizes):
    """Kills a pair of channels that is missing, or counted twice and so weighted double; features after the last
    column that outputs read."""
    key_dim, last = 8 * sizes.groups, sizes.read[-1][1]
    first, second = scheme.channels(sizes.groups, sizes.columns)
    assert sorted(x for x, y in zip(first, second, strict=True) if x >= 0 > y) == list(range(key_dim))
    products = sorted(tuple(sorted(p)) for p in zip(first, second, strict=True) if min(p) >= 0)
    assert products == list(itertools.combinations_with_replacement(range(key_dim), 2))
    assert scheme.constant_column(sizes.groups) < last
    assert np.all(first[last:] < 0)


@SIZES
def test_cuts_are_whole(sizes):
    """Kills columns that no piece has, or two, and pieces that the tiles, the rows and the K of a wgmma do not fit."""
    for cuts, stop, unit in ((sizes.scanned, sizes.columns, 8 if sizes.values_first else 64), (sizes.read, None, 32)):
        starts, stops = zip(*cuts, strict=True)
        assert starts == (0, *stops[:-1])
        assert stop in (None, stops[-1])
        assert all(x % unit == 0 for x in stops)
    starts, stops = zip(*sizes.pulled, strict=True)
    assert starts == (0, *stops[:-1])
    assert stops[-1] == sizes.read[-1][1]
    assert all(x % 8 == 0 for x in stops)


@SIZES
def test_features_are_the_products_of_the_table(sizes):
    """Kills a table of columns, which lays out states, that is not what the kernels multiply; a piece that depends on
    the others."""
    x = np.random.default_rng(0).standard_normal((64, 8 * sizes.groups)).astype(np.float32)
    first, second = scheme.channels(sizes.groups, sizes.columns)
    expected = np.where(first < 0, 0, x[:, first] * np.where(second < 0, 1, x[:, second]))
    expected[:, scheme.constant_column(sizes.groups)] = 1
    for start, stop in (*sizes.scanned, *sizes.read):
        tiles = scheme.tiles_between(sizes.groups, start, stop)
        found = scheme.features(scheme.ArrayLanes(np), x, tiles=tiles, halved=False)
        np.testing.assert_array_equal(found, expected[:, start:stop])


@pytest.mark.parametrize("halved", [full(False), True])
@SIZES
def test_pull_back_is_the_transposed_jacobian(sizes, halved):
    """Kills a derivative that stays in the wrong lane, or misses one of the two factors."""
    lanes = scheme.ArrayLanes(jnp)
    rng = np.random.default_rng(0)
    x, u = (rng.standard_normal((64, n)).astype(np.float32) for n in (8 * sizes.groups, sizes.pulled[-1][1]))

    @jax.jit
    def both(x, u):
        found = None
        for start, stop in sizes.pulled:
            tiles = scheme.tiles_between(sizes.groups, start, stop)
            found = scheme.pull_back(lanes, x, u[:, start:stop], found, tiles=tiles, halved=halved)
        tiles = scheme.tiles_between(sizes.groups, 0, u.shape[1])
        _, pull_back = jax.vjp(lambda x: scheme.features(lanes, x, tiles=tiles, halved=halved), x)
        return found, pull_back(u)[0]

    np.testing.assert_allclose(*both(x, u), rtol=1e-4, atol=2e-5)


class Bf16Pairs(np.ndarray):
    """(32, 2) bf16: the two halves of one register in each lane."""


def emulated_utils():
    def prmt(low, high, selector):
        octets = np.stack([low, high], -1).astype("<u4").view(np.uint8)  # (32, 8)
        chosen = (np.broadcast_to(selector, 32)[:, None] >> np.array([0, 4, 8, 12])) & 0xF
        return np.take_along_axis(octets, chosen.astype(np.int64), 1).copy().view("<u4")[:, 0]

    def bitcast(x, kind):
        if kind == "bf16x2":
            return x.astype("<u4").view(ml_dtypes.bfloat16).reshape(32, 2).view(Bf16Pairs)
        if isinstance(x, Bf16Pairs):
            return np.ascontiguousarray(x).view("<u4")[:, 0]
        return x.view({"i32": np.uint32, "f32": np.float32}[kind])

    return types.SimpleNamespace(
        c=lambda value, kind: (
            np.full(32, value, np.float32) if kind == "f32" else I32(np.full(32, value % 2**32, np.uint32))
        ),
        thread_idx=lambda: LANES.astype(np.uint32) + 96,
        prmt=prmt,
        bitcast=bitcast,
        shfl_bfly=lambda x, e: x[LANES ^ e],
    )


class I32(np.ndarray):
    """(32,) registers that know their type, as `utils.c` makes them."""

    def __new__(cls, x):
        return x.view(cls)

    type = "i32"


def emulated_modules():
    ir = types.SimpleNamespace(
        IntegerType=types.SimpleNamespace(get_signless=lambda bits: f"i{bits}"),
        F32Type=types.SimpleNamespace(get=lambda: "f32"),
        BF16Type=types.SimpleNamespace(get=lambda: "bf16"),
        VectorType=types.SimpleNamespace(get=lambda shape, kind: f"{kind}x{shape[0]}"),
        DenseI64ArrayAttr=types.SimpleNamespace(get=lambda positions: positions[0]),
    )
    arith = types.SimpleNamespace(
        CmpIPredicate=types.SimpleNamespace(eq=np.equal, ne=np.not_equal),
        andi=np.bitwise_and,
        shli=np.left_shift,
        addf=np.add,
        mulf=np.multiply,
        select=np.where,
        cmpi=lambda predicate, x, y: predicate(x, y),
    )
    vector = types.SimpleNamespace(
        extract=lambda pair, dynamic_position, static_position: np.ascontiguousarray(pair[:, static_position]),
        from_elements=lambda kind, registers: np.stack(registers, -1),
    )
    fragment = types.SimpleNamespace(FragmentedArray=lambda _registers, _layout, _is_signed: _registers)
    math = types.SimpleNamespace(fma=lambda x, y, z: x * y + z)
    return {"ir": ir, "arith": arith, "vector": vector, "math": math, "mgpu": fragment, "utils": emulated_utils()}


def fragment_of(x):
    """16 rows of x as the registers of one warp: of lane l, columns 8 i + 2 (l % 4) + (0, 1), rows l // 4 + (0, 8)."""
    registers = np.empty((x.shape[1] // 8, 2), object)
    for i, half in np.ndindex(registers.shape):
        columns = 8 * i + 2 * (LANES % 4)
        pair = np.stack([x[LANES // 4 + 8 * half, columns + j] for j in range(2)], -1)
        registers[i, half] = pair.view(Bf16Pairs) if x.dtype == ml_dtypes.bfloat16 else pair
    return types.SimpleNamespace(registers=registers, mlir_dtype="bf16" if x.dtype == ml_dtypes.bfloat16 else "f32")


@pytest.mark.parametrize("halved", [full(False), True])
@SIZES
def test_registers_hold_what_arrays_do(sizes, halved, monkeypatch):
    """Kills a selector of prmt, a lane, a half of a register or a row that is not the one of the scheme."""
    for name, module in emulated_modules().items():
        monkeypatch.setattr(registers, name, module)
    layout = types.SimpleNamespace(registers_shape=lambda shape: (shape[1] // 8, 2))
    lanes, arrays = registers.RegisterLanes(layout), scheme.ArrayLanes(np)
    rng = np.random.default_rng(0)
    start = rng.standard_normal((16, sizes.keys)).astype(np.float32)
    x = rng.standard_normal(start.shape).astype(ml_dtypes.bfloat16 if sizes.parts == 1 else np.float32)

    def check(function, *given, exact=False, **options):
        found = function(lanes, *map(fragment_of, given), **options)
        expected = fragment_of(function(arrays, *given, **options)).registers
        for register, wanted in zip(found.flat, expected.flat, strict=True):
            np.testing.assert_allclose(
                register.astype(np.float32),
                wanted.astype(np.float32),
                rtol=0 if exact else 1e-5,
                atol=0 if exact else 1e-5,
            )

    for i, cut in enumerate(sizes.pulled):
        tiles = scheme.tiles_between(sizes.groups, *cut)
        u = rng.standard_normal((16, cut[1] - cut[0])).astype(np.float32)
        check(scheme.features, x, tiles=tiles, halved=halved, exact=True)
        check(scheme.pull_back, x, u, *[start] * (i > 0), tiles=tiles, halved=halved)
