"""The UT transform with decays per channel of the keys, of 64 channels, on Hopper: every chunk by itself.

    Q_ij = sum_k K_ik K_jk exp(G_ik - G_jk), j < i          A = Diag(beta) Q

Exponents are nonpositive, by the levels of `hopper/levels.py`; queries and keys are both K, so a level is M M^T with M
= exp(E) * K. `mosaic_gpu_channel_vjp.py` has the gradients.

Channels are processed in two halves, to save registers. Barriers: `commit_smem` separates the stores of each tile from
the wgmma that read it, and these from the next stores. Sums of log decays of 16 rows pass through `totals_s`; a
`commit_smem` ends each half.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper import inverse as inverse_of_chunk
from pallas_kernels.hopper.levels import CHUNK, LEVELS, Decays, Near, half_tile, load, run_once
from pallas_kernels.hopper.rows import PIECE_ROWS, Rows
from pallas_kernels.hopper.tiles import PER_COLUMN, WGMMA, columns_to, rows_to, sum_products
from pallas_kernels.ut_transform.mosaic_gpu import HALF, Array, InChunk, by_chunk, halves, numbers

KEEP_ROWS = 8
"""Number of written copies of `keep`: rows of a tile."""


def forward(k, beta, log_decay, *, interpret=None):
    """Forward pass (contract in `api.py`) for log_decay (b, t, h, 64)."""
    b, t, h, _ = k.shape
    sizes = b, h, t // CHUNK

    def border(c: InChunk, half, until, since, carry):
        keys = c.shared("x").at[half]
        c.r.keep_s[half] = until * since
        c.r.read_s[half] = (-load(keys) * since).astype(jnp.bfloat16)
        c.r.write_s[half] = (load(keys) * until).astype(jnp.bfloat16)
        return carry

    def chunk(c: InChunk):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        part, _ = levels(c, functools.partial(border, c))
        mix = inverse(c, scores(c, part))
        c.r.mix_s[0] = (mix * columns_to(plgpu.load(c.shared("beta"), layout=PER_COLUMN))).astype(jnp.bfloat16)

    def like(*shape, dtype=k.dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    outputs = {"mix": Array(like(b, sizes[2], h, CHUNK, CHUNK), 1)}
    outputs |= {name: halves(like(*k.shape)) for name in ("read", "write")}
    outputs["keep"] = halves(like(b, sizes[2], h, KEEP_ROWS, CHUNK, dtype=jnp.float32))
    inputs = {"x": halves(k), "beta": numbers(beta), "decay": halves(log_decay)}
    scratch = {"levels_s": half_tile(4), "totals_s": plgpu.SMEM((4, HALF), jnp.float32)}
    found = by_chunk("forward_channel", chunk, inputs, outputs, scratch, sizes=sizes, stages=1, interpret=interpret)
    return found["mix"], found["read"], found["write"], found["keep"][:, :, :, 0]


def inverse(c: InChunk, scores):
    """(I + A)^-1, from Q."""
    a = scores * rows_to(c.per_row("beta"))
    return inverse_of_chunk.inverse(c.r, c.rows, c.mma, a, c.index[0])


def rows_of(c: InChunk) -> Rows:
    return Rows(c.r.totals_s, c.rows.interpreted)


def levels(c: InChunk, border=lambda half, until, since, carry: carry, carry=()):
    """Stores M of the last two levels to `levels_s`; returns pairs of the other levels, for `scores`, and the carry.

    border: called after each half of the channels with its exp(G_c - G) and exp(G), (64, 32).
    """
    rows = rows_of(c)

    def half_levels(half, state):
        part, carry = state
        keys = c.shared("x").at[half]
        decays = Decays(rows, plgpu.load(c.shared("decay").at[half], layout=WGMMA))

        def weigh(level, own, other, part):
            decays.level, decays.own, decays.other = level, own, other
            x = (load(keys) * own).astype(jnp.bfloat16)
            if level < LEVELS - 2:
                near = Near(c.index[0])
                mask = near.of_level(level) & (near.j < near.i)
                part = part + jnp.where(mask, rows.within(x, x), 0.0)
            else:
                c.r.levels_s[2 * (level - LEVELS + 2) + half] = x
            decays.next()
            return decays.own, decays.other, part

        found = decays.own, decays.other, part
        for level in range(LEVELS):
            found = run_once(c.index[0], functools.partial(weigh, level), found)
        until, since, part = found
        carry = border(half, until, since, carry)
        plgpu.commit_smem()
        return part, carry

    none = plgpu.layout_cast(jnp.zeros((CHUNK, PIECE_ROWS), jnp.float32), WGMMA)
    return lax.fori_loop(0, 2, half_levels, (none, carry))


def scores(c: InChunk, part):
    """Q (64, 64) float32, from the result of `levels`."""

    def pairs(level):
        for half in range(2):
            x = c.r.levels_s.at[2 * level + half + c.index[0]]
            yield x, x.transpose((1, 0))

    near, far = sum_products(pairs(0), pairs(1))
    return rows_of(c).join(part, near, far, upper=False)
