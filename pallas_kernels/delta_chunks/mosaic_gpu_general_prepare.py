"""The general delta rule on Hopper: everything that does not depend on states, for all chunks at once.

The four products of u and q with k and z share the decays of `hopper/levels.py`: at a level a row of M_1 is q or k, a
row of M_2 is u or z, depending on a binary digit of its index, times the decay to the middle of its block. The products
of a level are below the diagonal of M_a M_b^T.

u reads the state before the decay of its token, which is the state after the previous token. So u is shifted up by one
row, by an exact product with a mask, and the results are shifted down again. Meanwhile the first row is in the last
place: it reads the state without a decay, and no token of the chunk.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.delta_chunks.general_xla import Prepared
from pallas_kernels.hopper.levels import CHUNK, LEVELS, Chunk, Decays, as_operand, chunk_scratch, half_tile
from pallas_kernels.hopper.rows import PIECE_ROWS, Rows
from pallas_kernels.hopper.tiles import WGMMA, launch, read, sum_products

PIECE = 8
"""Chunks per thread block."""
HALF, LAST = CHUNK // 2, CHUNK - 1
KEEP_ROWS = 8
"""Number of written copies of `keep`: rows of a tile."""
TOKENS = {"u": "read", "q": "query", "k": "write", "z": "change"}
"""Input -> output that overwrites it."""
PRODUCTS = {"uk": (1, 0), "system": (1, 1), "qk": (0, 0), "qz": (0, 1)}
"""Rows and columns: from M_1 (0) or M_2 (1); the system is negated."""
LAST_PRODUCT = len(PRODUCTS) - 1


def prepare(q, k, u, z, log_decay, *, interpret=None) -> Prepared:
    """`general_xla.prepare` for keys of 64 channels; a thread block of one warpgroup processes `PIECE` chunks."""
    b, t, h, _ = q.shape
    n = t // CHUNK

    def body(r):
        batch, head, piece = (lax.axis_index(x) for x in ("b", "h", "piece"))
        first, zero_row = piece * PIECE, jnp.int32(0)
        count = jnp.minimum(PIECE, n - first)

        def halves(*at):
            return [(*at, pl.ds(half * HALF, HALF)) for half in range(2)]

        def tokens(position):
            return halves(batch, pl.ds((first + position) * CHUNK, CHUNK), head)

        def fetch(position):
            for name in (*TOKENS, "decay"):
                for half, at in enumerate(tokens(position)):
                    plgpu.copy_gmem_to_smem(getattr(r, name).at[at], getattr(r, f"{name}_s").at[half], r.full)

        fetch(zero_row)
        rows = Rows(r.totals_s, interpret is not None)
        chunk = Chunk(r, 0, (), None, interpret)
        chunk.write_indices()

        def step(position, _):
            plgpu.barrier_wait(r.full)
            _chunk(r, chunk, rows)
            plgpu.commit_smem()
            c = first + position
            for name, made in TOKENS.items():
                for half, at in enumerate(tokens(position)):
                    plgpu.copy_smem_to_gmem(getattr(r, f"{name}_s").at[half], getattr(r, made).at[at])
            for half, at in enumerate(halves(batch, c, head, pl.ds(0, KEEP_ROWS))):
                plgpu.copy_smem_to_gmem(r.decay_s.at[half, pl.ds(0, KEEP_ROWS)], r.keep.at[at])
            for i, name in enumerate(PRODUCTS):
                for half, at in enumerate(halves(batch, c, head, slice(None))):
                    plgpu.copy_smem_to_gmem(_place(r, i, half), getattr(r, name).at[at])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            pl.when(position + 1 < count)(lambda: fetch(position + 1))

        lax.fori_loop(0, count, step, None)
        plgpu.wait_smem_to_gmem(0)

    def like(*shape, dtype=q.dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    out = dict.fromkeys(PRODUCTS, like(b, n, h, CHUNK, CHUNK)) | dict.fromkeys(TOKENS.values(), like(*q.shape))
    out["keep"] = like(b, n, h, KEEP_ROWS, CHUNK, dtype=jnp.float32)
    scratch: dict[str, Any] = {f"{name}_s": half_tile(2) for name in TOKENS}
    scratch |= {"decay_s": half_tile(2, dtype=jnp.float32), "levels_s": half_tile(8), "products_s": half_tile(6)}
    scratch |= {"totals_s": plgpu.SMEM((4, HALF), jnp.float32), "full": plgpu.Barrier(num_arrivals=10)}
    operands = {"q": q, "k": k, "u": u, "z": z, "decay": log_decay}
    found = launch(
        "general_delta_prepare", body, operands, out, scratch | chunk_scratch(1, interpret),
        grid={"b": b, "h": h, "piece": -(-n // PIECE)}, approx_math=True,
        interpret=interpret,
    )  # fmt: skip
    return Prepared(**found | {"keep": found["keep"][:, :, :, 0]})


def _chunk(r, chunk: Chunk, rows: Rows):
    """Writes the products, and the outputs over q, k, u, z and the decays.

    Processes one half of the channels at a time, to save registers. Pairs of levels 0 to 3 are within a warp's rows.
    """
    none = plgpu.layout_cast(jnp.zeros((CHUNK, PIECE_ROWS), jnp.float32), WGMMA)
    parts = lax.fori_loop(0, 2, lambda half, parts: _half(r, chunk, rows, half, parts), (none,) * 4)

    def operand(level, m, half):
        return r.levels_s.at[4 * level + 2 * m + half]

    def product(i, name, part):
        row, column = PRODUCTS[name]

        def pairs(level):
            for half in range(2):
                yield operand(level, row, half), operand(level, column, half).transpose((1, 0))

        near, far = sum_products(pairs(0), pairs(1))
        found = rows.join(part, near, far, upper=False).astype(jnp.bfloat16)
        plgpu.commit_smem()
        places = [_place(r, i, half) for half in range(2)]
        for half, place in enumerate(places):
            place[...] = rows.half(found, half)
        plgpu.commit_smem()
        if row == 1:
            down = jnp.where(chunk.i == chunk.j + 1, -1.0 if name == "system" else 1.0, 0.0).astype(jnp.bfloat16)
            moved = [chunk.half_products([(down, place)]).astype(jnp.bfloat16) for place in places]
            plgpu.commit_smem()
            for place, x in zip(places, moved, strict=True):
                place[...] = x

    for i, (name, part) in enumerate(zip(PRODUCTS, parts, strict=True)):
        _once(r, functools.partial(product, i, name, part))


def _place(r, i: int, half: int):
    """Tile for half of the columns of a product; the last product overwrites its operands."""
    return r.levels_s.at[half] if i == LAST_PRODUCT else r.products_s.at[2 * i + half]


def _once(r, function):
    """Calls function() in a loop of one trip, which keeps the compiler from moving code and saves registers."""

    def run(_, carry):
        function()
        return carry

    lax.fori_loop(0, 1 + r.index_s[0, 0, 0], run, 0)


def _half(r, chunk: Chunk, rows: Rows, half, parts):
    """Adds products of pairs of a warp's rows to `parts`; writes the other results of half of the channels."""
    q, k, u, z, decay = (getattr(r, f"{name}_s").at[half] for name in ("q", "k", "u", "z", "decay"))

    def row():
        return plgpu.broadcasted_iota(jnp.int32, (CHUNK, HALF), 0, layout=WGMMA) + r.index_s[0, half, 0]

    def move(mask):
        moved = chunk.half_products([(as_operand(mask), u)]).astype(jnp.bfloat16)
        plgpu.commit_smem()
        u[...] = moved
        plgpu.commit_smem()

    move((chunk.j == chunk.i + 1) | (chunk.j == chunk.i - LAST))
    decays = Decays(rows, read(decay))
    columns = (k, z)

    def level_products(level, own, other, parts):
        decays.level, decays.own, decays.other = level, own, other

        def choose(x, y):
            return rows.choose((level,), read(x), read(y)).astype(jnp.float32)

        m = [(choose(x, y) * own).astype(jnp.bfloat16) for x, y in zip((q, u), columns, strict=True)]
        if level < LEVELS - 2:
            i, j = _pair(r, half)
            apart = i ^ j
            mask = (apart >= 1 << level) & (apart < 2 << level) & (j < i)
            found = [rows.within(m[a], m[b]) for a, b in PRODUCTS.values()]
            parts = tuple(part + jnp.where(mask, x, 0.0) for part, x in zip(parts, found, strict=True))
        else:
            for which, x in enumerate(m):
                r.levels_s[4 * (level - LEVELS + 2) + 2 * which + half] = x
        decays.next()
        return decays.own, decays.other, parts

    i, j = _pair(r, half)
    own = [rows.within(read((q, u)[a]), read(columns[b])) for a, b in PRODUCTS.values()]
    parts = tuple(part + jnp.where(i == j, x, 0.0) for part, x in zip(parts, own, strict=True))
    carry = decays.own, decays.other, parts
    for level in range(LEVELS):
        step = functools.partial(level_products, level)
        carry = lax.fori_loop(0, 1 + r.index_s[0, half, 0], lambda _, carry, step=step: step(*carry), carry)
    until, since, parts = carry
    decay[...] = until * since
    q[...] = (read(q).astype(jnp.float32) * since).astype(jnp.bfloat16)
    for x in columns:
        x[...] = (read(x).astype(jnp.float32) * until).astype(jnp.bfloat16)
    u[...] = (read(u).astype(jnp.float32) * jnp.where(row() == LAST, 1.0, since)).astype(jnp.bfloat16)
    plgpu.commit_smem()
    move((chunk.i == chunk.j + 1) | (chunk.i == chunk.j - LAST))
    return parts


def _pair(r, half):
    """Row and column of each element of (64, 16) within the rows of its warp."""
    i, j = (plgpu.broadcasted_iota(jnp.int32, (CHUNK, PIECE_ROWS), axis, layout=WGMMA) for axis in range(2))
    return i & (PIECE_ROWS - 1), j + r.index_s[0, half, 0]
