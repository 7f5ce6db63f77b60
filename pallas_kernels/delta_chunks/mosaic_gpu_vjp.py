"""Gradients of the recurrence over chunks on Hopper, chunk by chunk, from the states of both passes.

    dread = z S^T           dwrite = y U^T          dmix = (dy + write U) (x + read S)^T            dkeep = sum_v S * U

with S before and U after the chunk, and z the gradient of x. A thread block processes up to `PIECE` chunks of a row and
head in turn; tiles are (64, 64), i of keys and j of values.

Pallas' own barriers are off. Barriers are the wait for the copies of the previous chunk's gradients, `commit_smem` of x
+ read S, and `commit_smem` of the gradients, after which the slot is reloaded.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.delta_chunks import xla
from pallas_kernels.hopper.levels import CHUNK, SHARED_BYTES, TILE_BYTES, load, tile
from pallas_kernels.hopper.ring import Ring
from pallas_kernels.hopper.tiles import WGMMA, Mma, launch, sum_products

PIECE = 16
"""Chunks per thread block."""
MOST_STAGES = 2
VALUES, KEYS, STATES = ("x", "y", "dy", "dx"), ("read", "write"), ("before", "after")


def _tiles(rows: int, columns: int) -> dict[str, int]:
    """Tiles of a chunk for each array."""
    return dict.fromkeys(VALUES, columns) | dict.fromkeys(KEYS, rows) | dict.fromkeys(STATES, rows * columns)


def stages(k: int, v: int) -> int:
    """Number of chunks, with staged outputs, that fit in shared memory."""
    rows, columns = k // CHUNK, v // CHUNK
    left = SHARED_BYTES // TILE_BYTES - (2 * rows + 1 + columns)
    return max(0, min(MOST_STAGES, left // sum(_tiles(rows, columns).values())))


def gradients(x, read, write, y, dy, dx, before, after, *, interpret=None):
    """`xla.gradients` on Hopper."""
    (b, t, h, v), k = x.shape, read.shape[3]
    rows, columns, n, depth = k // CHUNK, v // CHUNK, t // CHUNK, stages(k, v)
    if depth == 0:  # a chunk exceeds the shared memory
        return xla.gradients(x, read, write, y, dy, dx, before, after)
    widths = _tiles(rows, columns)

    def body(r):
        batch, head, first = (lax.axis_index(name) for name in ("b", "h", "piece"))
        first = first * PIECE

        def source(name, i):
            array, shared = getattr(r, name), getattr(r, f"{name}_s")
            if name in STATES:
                keys, values = (pl.ds(part * CHUNK, CHUNK) for part in divmod(i, columns))
                return array, lambda c: (batch, c, head, keys, values), lambda slot: shared.at[slot, i]
            place = head * widths[name] + i
            return array, lambda c: (batch, pl.ds(c * CHUNK, CHUNK), place), lambda slot: shared.at[slot, i]

        loads = tuple(source(name, i) for name, width in widths.items() for i in range(width))
        count = jnp.minimum(n - first, PIECE)
        ring = Ring(loads, lambda position: first + position, count, depth, r.full, None, lag=0)
        ring.start()
        mma = Mma(None if interpret is None else (r.staging,), 0)

        def chunk(position, _):
            slot = lax.rem(position, jnp.int32(depth))
            plgpu.barrier_wait(r.full.at[slot])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            _chunk(r, mma, slot, rows, columns)
            plgpu.commit_smem()
            ring.refill(position)
            c = first + position
            for i in range(rows):
                at = batch, pl.ds(c * CHUNK, CHUNK), head * rows + i
                plgpu.copy_smem_to_gmem(r.dread_s.at[i], r.dread.at[at])
                plgpu.copy_smem_to_gmem(r.dwrite_s.at[i], r.dwrite.at[at])
                plgpu.copy_smem_to_gmem(r.dkeep_s.at[i], r.dkeep.at[batch, c, head * rows + i])
            plgpu.copy_smem_to_gmem(r.dmix_s, r.dmix.at[batch, c, head])

        lax.fori_loop(0, count, chunk, None)
        plgpu.wait_smem_to_gmem(0)

    def tiles(z):
        return z.reshape(b, t, -1, CHUNK)

    operands = dict(zip((*VALUES, *KEYS), map(tiles, (x, y, dy, dx, read, write)), strict=True))
    operands |= {"before": before, "after": after}
    keys = jax.ShapeDtypeStruct(operands["read"].shape, x.dtype)
    outputs = {"dread": keys, "dwrite": keys, "dmix": jax.ShapeDtypeStruct((b, n, h, CHUNK, CHUNK), x.dtype)}
    outputs["dkeep"] = jax.ShapeDtypeStruct((b, n, h * rows, CHUNK), jnp.float32)
    scratch: dict[str, Any] = {f"{name}_s": tile(depth, width) for name, width in widths.items()}
    scratch |= {"dread_s": tile(rows), "dwrite_s": tile(rows), "dmix_s": tile(), "mixed_s": tile(columns)}
    scratch |= {"dkeep_s": plgpu.SMEM((rows, CHUNK), jnp.float32)}
    scratch["full"] = plgpu.Barrier(num_arrivals=sum(widths.values()), num_barriers=depth)
    if interpret is not None:
        scratch["staging"] = tile(1)
    found = launch(
        "delta_chunks_gradients", body, operands, outputs, scratch,
        grid={"b": b, "h": h, "piece": -(-n // PIECE)}, interpret=interpret,
    )  # fmt: skip
    dread, dwrite = (found[name].reshape(read.shape) for name in ("dread", "dwrite"))
    return dread, dwrite, found["dmix"], found["dkeep"].reshape(b, n, h, k)


def _chunk(r, mma: Mma, slot, rows: int, columns: int):
    """Stages the gradients of a chunk; unrolled loops would need too many registers."""
    before, after = (lambda i, j, ref=ref: ref.at[slot, i * columns + j] for ref in (r.before_s, r.after_s))

    def add_to_dmix(j, dmix):
        """Adds the values j to dmix."""
        reads = [(r.read_s.at[slot, i], before(i, j)) for i in range(rows)]
        mixed, total = sum_products(reads, [(r.write_s.at[slot, i], after(i, j)) for i in range(rows)])
        r.mixed_s[j] = (mixed + load(r.x_s.at[slot, j])).astype(jnp.bfloat16)
        total = (total + load(r.dy_s.at[slot, j])).astype(jnp.bfloat16)
        plgpu.commit_smem()
        found = mma.update((dmix,), lambda acc: mma.registers(acc, total, r.mixed_s.at[j].transpose((1, 0))))
        return found[0]

    dmix = plgpu.layout_cast(jnp.zeros((CHUNK, CHUNK), jnp.float32), WGMMA)
    r.dmix_s[...] = lax.fori_loop(0, columns, add_to_dmix, dmix).astype(jnp.bfloat16)

    def of_keys(i, _):
        values = range(columns)
        reads = [(r.dx_s.at[slot, j], before(i, j).transpose((1, 0))) for j in values]
        writes = [(r.y_s.at[slot, j], after(i, j).transpose((1, 0))) for j in values]
        dread, dwrite = sum_products(reads, writes)
        r.dread_s[i], r.dwrite_s[i] = dread.astype(jnp.bfloat16), dwrite.astype(jnp.bfloat16)
        r.dkeep_s[i] = sum((load(before(i, j)) * load(after(i, j))).sum(1) for j in values)

    lax.fori_loop(0, rows, of_keys, None)
