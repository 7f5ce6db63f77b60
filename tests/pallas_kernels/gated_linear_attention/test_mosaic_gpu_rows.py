"""The register form of `hopper.rows`, run by threads of NumPy, against the form that is interpreted."""

import contextlib
import types
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

THREADS = np.arange(256)
ROWS = THREADS // 32 % 4 * 16 + THREADS % 32 // 4
COLUMNS = 2 * (THREADS % 4)[:, None] + np.arange(2)


def to_tile(x):
    """Registers (threads, 2) of (64, n), by 8 columns and 8 rows: the layout of wgmma, the same in two warpgroups."""
    return [[x[(ROWS + 8 * r)[:, None], 8 * n + COLUMNS] for r in range(2)] for n in range(x.shape[1] // 8)]


def to_array(tile):
    found = np.full((64, 8 * len(tile)), np.nan)
    for n, pair in enumerate(tile):
        for r, x in enumerate(pair):
            found[(ROWS + 8 * r)[:, None], 8 * n + COLUMNS] = x
            np.testing.assert_array_equal(x[:128], x[128:])
    return found


def inline_ptx(ptx, *registers, result_types, convergent):
    """m16n8k16 of the PTX manual: a, rows l and l + 8 of columns 0 to 7, then 8 to 15; b, columns l; c, both rows."""
    assert convergent
    warps = lambda x: x.reshape(-1, 8, 8)  # (warp, l, columns)  # noqa: E731
    if ptx.startswith("movmatrix.sync.aligned.m8n8.trans.b16"):
        return warps(registers[0]).swapaxes(1, 2).reshape(-1, 2)
    assert "m16n8k16.row.col.f32.bf16.bf16.f32" in ptx
    assert len(result_types) == 4
    a, b, c = registers[:4], registers[4:6], registers[6:]
    first = [np.concatenate([warps(a[r]), warps(a[r + 2])], axis=2) for r in range(2)]
    product = np.concatenate(first, axis=1) @ np.concatenate(list(map(warps, b)), axis=2).swapaxes(1, 2)
    return [product[:, 8 * r : 8 * r + 8, e::2].reshape(-1) + c[2 * r + e] for r in range(2) for e in range(2)]


def emulate(module, monkeypatch):
    """Puts NumPy in place of the dialects that the module writes; returns what takes the place of shared memory."""
    masks = []

    @contextlib.contextmanager
    def when(condition):
        masks.append(condition)
        yield
        masks.pop()

    def store(value, ref, at):
        row, column = (x[masks[-1]][:, None] for x in at)
        ref[row, column + np.arange(2)] = value[masks[-1]]

    def inline(function, outputs, *arrays, ref=None):
        tiles = function(*() if ref is None else (ref,), *(to_tile(np.asarray(x, np.float64)) for x in arrays))
        return tuple(jnp.asarray(to_array(tile), dtype) for tile, (_, dtype) in zip(tiles, outputs, strict=True))

    either = lambda condition, x, y: np.where(np.broadcast_to(condition, THREADS.shape)[:, None], x, y)  # noqa: E731
    numpy = {"mulf": np.multiply, "andi": np.bitwise_and, "xori": np.bitwise_xor, "addi": np.add, "addf": np.add}
    numpy |= {"select": np.where, "shrui": np.right_shift, "shli": np.left_shift, "index_cast": lambda _, x: x}
    predicates = types.SimpleNamespace(eq=np.equal, ne=np.not_equal, ult=np.less, ugt=np.greater)
    arith = types.SimpleNamespace(CmpIPredicate=predicates, cmpi=lambda test, x, y: test(x, y), **numpy)
    utils = types.SimpleNamespace(
        thread_idx=lambda: THREADS,
        shfl_bfly=lambda x, lanes: x[THREADS ^ lanes],
        bitcast=lambda x, _: x,
        c=lambda x, _: x,
        inline_ptx=inline_ptx,
        when=when,
        warpgroup_barrier=lambda: None,
    )
    vector = types.SimpleNamespace(
        store=store,
        load=lambda _, ref, at: ref[np.broadcast_to(at[0], THREADS.shape)[:, None], at[1][:, None] + np.arange(2)],
        from_elements=lambda _, pair: np.stack(pair, axis=-1),
    )
    replaced = {"arith": arith, "utils": utils, "vector": vector, "_inline": inline, "_either": either}
    replaced["math"] = types.SimpleNamespace(fma=lambda x, y, z: x * y + z)
    for name, value in (replaced | {"ir": mock.MagicMock()}).items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "_number", lambda value, _: np.full((len(THREADS), 2), value))
    monkeypatch.setattr(module, "_element", lambda pair, i: pair[:, i])
    return np.full((20, 64), np.nan)


@pytest.mark.full
def test_registers_and_arrays_agree(monkeypatch):
    """Kills: a shuffle of another distance; a choice by another digit; a sibling warp's products from another row or
    column; operands or results of m16n8k16 at other places; blocks or sums of another warp."""
    from pallas_kernels.hopper import rows as module

    rng = np.random.default_rng(0)
    shared = emulate(module, monkeypatch)
    of_registers, of_arrays = module.Rows(shared, interpreted=False), module.Rows(None, interpreted=True)
    decay, x, y = (jnp.asarray(np.exp(rng.normal(size=(64, 64))), jnp.float32) for _ in range(3))
    within, near, far = (jnp.asarray(rng.normal(size=(64, n)), jnp.float32) for n in (16, 64, 64))

    def run(rows):
        found = [rows.within(x, y), rows.within(x, x)] + [rows.join(within, near, far, upper=z) for z in (False, True)]
        found += [rows.choose((3, 4), x, 0.0), rows.choose((5,), x, y), rows.diagonal(x)]
        found += [rows.multiply(within, x), rows.multiply(within, x, y), rows.across(x, 4), rows.across(x, 5)]
        halves = [[rows.half(z, i) for z in (decay, jnp.ones_like(decay))] for i in range(2)]
        for i, half in enumerate(halves):
            own, other = rows.choose((0,), *half), rows.choose((0,), *half[::-1])
            for digit in range(module.DIGITS):
                own, other = rows.advance(own, other, digit, 32 * i)
                halves[i] = [own, other]
                found += halves[i]
        found += [z for digit in (2, 3, 4) for z in rows.add(digit, x, y, near)]
        ones = jnp.ones_like(within)
        sums = [rows.multiply(ones, z) for z in (x, y, near, far)]
        return [*found, *rows.beyond(*sums, 0), rows.concatenate(halves[0][0], halves[1][1])]

    for a, b in zip(run(of_registers), run(of_arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
