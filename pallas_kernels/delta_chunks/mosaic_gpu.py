"""The recurrence over chunks on Hopper: a thread block scans 64 columns of v of a row and head, in registers.

    y_c = mix_c (x_c + read_c S_c)                  S_{c+1} = Diag(keep_c) S_c + write_c^T y_c

and in reverse, with mix transposed, from the last chunk to the first. All tiles are (64, 64). Each chunk has three
dependent matmuls; transposed, each has the previous result as its first operand, which wgmma reads from registers:

    R = x^T + S^T read^T            y^T = R mix^T           S^T <- S^T Diag(keep) + y^T write

x^T mix^T is a separate matmul of shared memory that does not wait for the state. S^T is a float32 accumulator, of which
wgmma reads a rounded copy; R and y are rounded likewise.

Pallas' own barriers are off. Barriers are `commit_smem` of a chunk's output, after which the slot of the previous chunk
is reloaded, and the wait for the copies of the chunk before the previous one.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.levels import CHUNK, SHARED_BYTES, TILE_BYTES, tile
from pallas_kernels.hopper.ring import Ring, scan_order
from pallas_kernels.hopper.tiles import PER_COLUMN, Mma, columns_to, launch, start_state

MOST_STAGES = 6
BUFFERS = 2


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes of a call: n chunks; rows and columns: tiles of 64 keys and of 64 values."""

    b: int
    h: int
    n: int
    rows: int
    columns: int

    @property
    def widths(self) -> dict[str, int]:
        """Tiles of a chunk for each array."""
        return {"x": 1, "read": self.rows, "write": self.rows, "mix": 1}

    @property
    def stages(self) -> int:
        """Chunks of the ring."""
        tiles = SHARED_BYTES // TILE_BYTES - BUFFERS * (1 + self.rows)
        return min(MOST_STAGES, tiles // sum(self.widths.values()))

    def loads(self, r, batch, head, column):
        """Loads of the `Ring`, by chunk."""

        def tokens(name, tile, i):
            array, shared = getattr(r, name), getattr(r, f"{name}_s")
            return array, lambda c: (batch, pl.ds(c * CHUNK, CHUNK), tile), lambda slot: shared.at[slot, i]

        loads = [tokens("x", head * self.columns + column, 0)]
        for i in range(self.rows):
            tile = head * self.rows + i
            loads += [tokens("read", tile, i), tokens("write", tile, i)]
            loads.append((r.keep, lambda c, tile=tile: (batch, c, tile), lambda slot, i=i: r.keep_s.at[slot, i]))
        loads.append((r.mix, lambda c: (batch, c, head), lambda slot: r.mix_s.at[slot, 0]))
        return tuple(loads)


def recur(x, read, write, mix, keep, state, *, reverse=False, save_states, interpret=None):
    """`xla.recur` on Hopper; interpret: `plgpu.InterpretGPUParams` or None."""
    (b, t, h, v), k = x.shape, read.shape[3]
    g = Geometry(b, h, t // CHUNK, k // CHUNK, v // CHUNK)

    def body(r):
        batch, head, column = (lax.axis_index(name) for name in ("b", "h", "column"))
        index = scan_order(g.n, reverse)
        loads = g.loads(r, batch, head, column)
        ring = Ring(loads, index, jnp.int32(g.n), g.stages, r.full, None, lag=1)
        ring.start()
        states = [None if state is None else r.start.at[batch, head, column, i] for i in range(g.rows)]
        mma = Mma(None if interpret is None else (r.staging,), 0)

        def copy(position, buffer):
            c = index(position)
            values = pl.ds(column * CHUNK, CHUNK)
            plgpu.copy_smem_to_gmem(r.y_s.at[buffer], r.y.at[batch, pl.ds(c * CHUNK, CHUNK), head * g.columns + column])
            for i in range(g.rows if save_states else 0):
                keys = pl.ds(i * CHUNK, CHUNK)
                plgpu.copy_smem_to_gmem(r.states_s.at[buffer, i], r.states.at[batch, c, head, keys, values])

        def step(position, x):
            return _chunk(r, mma, ring, position, x, copy, reverse=reverse)

        last = lax.fori_loop(0, g.n, step, tuple(map(start_state, states)))
        plgpu.wait_smem_to_gmem(0)
        for i, part in enumerate(last):
            r.last[batch, head, column, i] = part

    def tiles(z):
        return z.reshape(b, t, -1, CHUNK)

    operands = {"x": tiles(x), "read": tiles(read), "write": tiles(write), "mix": mix, "start": None}
    operands["keep"] = keep.reshape(b, g.n, -1, CHUNK)
    if state is not None:  # (b, h, k, v) -> (b, h, columns, rows, 64, 64), each tile transposed
        tiled = state.astype(jnp.float32).reshape(b, h, g.rows, CHUNK, g.columns, CHUNK)
        operands["start"] = tiled.transpose(0, 1, 4, 2, 5, 3)
    outputs = {"y": jax.ShapeDtypeStruct(operands["x"].shape, x.dtype)}
    outputs["last"] = jax.ShapeDtypeStruct((b, h, g.columns, g.rows, CHUNK, CHUNK), jnp.float32)
    if save_states:
        outputs["states"] = jax.ShapeDtypeStruct((b, g.n, h, k, v), x.dtype)
    found = launch(
        f"delta_chunks_{'reverse' if reverse else 'forward'}", body, operands, outputs,
        _scratch(g, save_states, interpret), grid={"b": b, "h": h, "column": g.columns},
        interpret=interpret,
    )  # fmt: skip
    last = found["last"].transpose(0, 1, 3, 5, 2, 4).reshape(b, h, k, v)
    return found["y"].reshape(x.shape), last, found.get("states")


def _scratch(g: Geometry, save_states: bool, interpret) -> dict[str, Any]:
    scratch: dict[str, Any] = {f"{name}_s": tile(g.stages, width) for name, width in g.widths.items()}
    scratch["keep_s"] = plgpu.SMEM((g.stages, g.rows, CHUNK), jnp.float32)
    scratch["full"] = plgpu.Barrier(num_arrivals=sum(g.widths.values()) + g.rows, num_barriers=g.stages)
    scratch["y_s"] = tile(BUFFERS)
    if save_states:
        scratch["states_s"] = tile(BUFFERS, g.rows)
    if interpret is not None:
        scratch["staging"] = tile(1)
    return scratch


def _chunk(r, mma: Mma, ring: Ring, position, state, copy, *, reverse: bool):
    """The next state, tiles of S^T; copy(position, buffer) writes the staged outputs."""
    slot, buffer = (lax.rem(position, jnp.int32(n)) for n in (ring.stages, BUFFERS))
    saved = r.states_s.at[buffer] if hasattr(r, "states_s") else None
    plgpu.barrier_wait(r.full.at[slot])
    plgpu.wait_smem_to_gmem(1 if saved is None else 1 + len(state), wait_read_only=True)
    mix = r.mix_s.at[slot, 0] if reverse else r.mix_s.at[slot, 0].transpose((1, 0))
    rounded = [part.astype(jnp.bfloat16) for part in state]

    def mixed(y, found):
        plgpu.wgmma(y, r.x_s.at[slot, 0].transpose((1, 0)), mix)
        for i, part in enumerate(rounded):
            mma.registers(found, part, r.read_s.at[slot, i].transpose((1, 0)))
        if saved is not None:
            for i, part in enumerate(rounded):
                saved.at[i].T[...] = part
        mma.registers(y, found[...].astype(jnp.bfloat16), mix)
        return y[...].astype(jnp.bfloat16)

    y = pl.run_scoped(mixed, *[plgpu.ACC((CHUNK, CHUNK), jnp.float32)] * 2)

    def add(*parts):
        for i, part in enumerate(parts):
            mma.registers(part, y, r.write_s.at[slot, i])
        r.y_s.at[buffer].T[...] = y
        plgpu.commit_smem()
        ring.refill(position)
        copy(position, buffer)

    keep = (columns_to(plgpu.load(r.keep_s.at[slot, i], layout=PER_COLUMN)) for i in range(len(state)))
    return mma.update(tuple(part * kept for part, kept in zip(state, keep, strict=True)), add)
