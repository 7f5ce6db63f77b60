"""The general delta rule on Hopper, for keys and values of 64 channels: recurrences of states and of cotangents.

A thread block scans the chunks of a row and head in registers, like `mosaic_gpu.py`. Transposed, every matmul has the
previous result as its first operand, which wgmma reads from registers:

    R = V^T A_uk^T + S^T read^T             X^T = R mix^T
    Y^T = V^T L_qk^T + S^T query^T + X^T L_qz^T
    S^T <- S^T Diag(keep) + V^T write + X^T change

The recurrence of the cotangents is the same from the last chunk to the first, with products and mix transposed, dY for
V, dX for X and dV for Y, and in the order of these equations L_qz, change, L_qk, write, A_uk, query and read.

Pallas' own barriers are off. Barriers are the wait for the previous copies, before outputs are staged, and the
`commit_smem` that follows, after which the slot of the chunk is reloaded.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.delta_chunks.general_xla import Prepared
from pallas_kernels.delta_chunks.mosaic_gpu_general_prepare import prepare
from pallas_kernels.delta_chunks.mosaic_gpu_general_vjp import gradients
from pallas_kernels.hopper.levels import CHUNK, SHARED_BYTES, TILE_BYTES, tile
from pallas_kernels.hopper.ring import Ring, scan_order
from pallas_kernels.hopper.tiles import PER_COLUMN, Mma, columns_to, launch, start_state
from pallas_kernels.ut_transform import mosaic_gpu as ut_transform

__all__ = ["gradients", "inverse", "prepare", "recur", "recur_reverse"]
MOST_STAGES = 4


class _Roles(NamedTuple):
    """Fields of `Prepared` in the equations of the module docstring."""

    into: str
    reads: str
    own: str
    queries: str
    out_of: str
    writes: str
    changes: str


FORWARD = _Roles("uk", "read", "qk", "query", "qz", "write", "change")
REVERSE = _Roles("qz", "change", "qk", "write", "uk", "query", "read")
CHUNKS = ("into", "own", "out_of", "mix", "states")
"""Arrays (b, n, h, 64, 64); others are tokens (b, t, h, 64)."""


def inverse(system, *, interpret=None):
    """`general_xla.inverse` on Hopper."""
    return ut_transform.forward(system, None, None, interpret=interpret)[0]


def recur(v, given: Prepared, mix, state, *, save: bool, interpret=None):
    """`general_xla.recur` on Hopper."""
    found, last = _scan("forward", FORWARD, v, given, mix, state, ("y", "x", "states") if save else ("y",), interpret)
    return found["y"], last, found.get("x"), found.get("states")


def recur_reverse(dy, given: Prepared, mix, dstate, *, interpret=None):
    """`general_xla.recur_reverse` on Hopper."""
    found, first = _scan("reverse", REVERSE, dy, given, mix, dstate, ("y", "x", "states"), interpret)
    return found["x"], found["y"], found["states"], first


def _scan(name: str, roles: _Roles, values, given: Prepared, mix, state, writes, interpret):
    """One of the recurrences; returns outputs by name, and the last state (b, h, 64, 64) float32."""
    b, t, h, _ = values.shape
    n, reverse = t // CHUNK, roles is REVERSE
    reads = {role: getattr(given, array) for role, array in roles._asdict().items()} | {"values": values, "mix": mix}
    stages = min(MOST_STAGES, (SHARED_BYTES // TILE_BYTES - len(writes)) // len(reads))

    def body(r):
        batch, head = lax.axis_index("b"), lax.axis_index("h")
        index = scan_order(n, reverse)

        def place(array, c):
            return (batch, c, head) if array in CHUNKS else (batch, pl.ds(c * CHUNK, CHUNK), head)

        def load(array):
            ref, shared = getattr(r, array), getattr(r, f"{array}_s")
            return ref, lambda c: place(array, c), lambda slot: shared.at[slot]

        loads = (*map(load, reads), (r.keep, lambda c: (batch, c, head), lambda slot: r.keep_s.at[slot]))
        ring = Ring(loads, index, jnp.int32(n), stages, r.full, None, lag=0)
        ring.start()
        start = start_state(None if state is None else r.start.at[batch, head])
        mma = Mma(None if interpret is None else (r.staging,), 0)

        def chunk(position, state):
            slot = lax.rem(position, jnp.int32(stages))
            plgpu.barrier_wait(r.full.at[slot])
            state, staged = _chunk(r, mma, slot, state, reverse=reverse)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            for array in writes:
                out = getattr(r, f"{array}_out_s")
                (out if array == "states" else out.T)[...] = staged[array]
            plgpu.commit_smem()
            ring.refill(position)
            for array in writes:
                out, at = getattr(r, f"{array}_out"), place(array, index(position))
                plgpu.copy_smem_to_gmem(getattr(r, f"{array}_out_s"), out.at[at])
            return state

        last = lax.fori_loop(0, n, chunk, start)
        plgpu.wait_smem_to_gmem(0)
        r.last[batch, head] = last

    start = None if state is None else state.astype(jnp.float32).swapaxes(2, 3)
    tokens = jax.ShapeDtypeStruct(values.shape, values.dtype)
    states = jax.ShapeDtypeStruct((b, n, h, CHUNK, CHUNK), values.dtype)
    outputs = {f"{array}_out": states if array == "states" else tokens for array in writes}
    outputs["last"] = jax.ShapeDtypeStruct((b, h, CHUNK, CHUNK), jnp.float32)
    scratch: dict[str, Any] = {f"{array}_s": tile(stages) for array in reads}
    scratch["keep_s"] = plgpu.SMEM((stages, CHUNK), jnp.float32)
    scratch |= {f"{array}_out_s": tile() for array in writes}
    scratch["full"] = plgpu.Barrier(num_arrivals=len(reads) + 1, num_barriers=stages)
    if interpret is not None:
        scratch["staging"] = tile(1)
    found = launch(
        f"general_delta_{name}", body, reads | {"keep": given.keep, "start": start}, outputs, scratch,
        grid={"b": b, "h": h}, interpret=interpret,
    )  # fmt: skip
    last = found.pop("last").swapaxes(2, 3)
    return {key.removesuffix("_out"): x for key, x in found.items()}, last


def _chunk(r, mma: Mma, slot, state, *, reverse: bool):
    """The next state, transposed, and staged outputs: Y^T, X^T, and the rounded previous state."""

    def ref(name):
        return getattr(r, f"{name}_s").at[slot]

    def transposed(name):
        return ref(name).transpose((1, 0))

    of_chunk = ref if reverse else transposed
    rounded = state.astype(jnp.bfloat16)

    def outputs(found, x, y):
        plgpu.wgmma(found, transposed("values"), of_chunk("into"))
        mma.registers(found, rounded, transposed("reads"))
        plgpu.wgmma(y, transposed("values"), of_chunk("own"))
        mma.registers(y, rounded, transposed("queries"))
        mma.registers(x, found[...].astype(jnp.bfloat16), of_chunk("mix"))
        mixed = x[...].astype(jnp.bfloat16)
        mma.registers(y, mixed, of_chunk("out_of"))
        return mixed, y[...].astype(jnp.bfloat16)

    x, y = pl.run_scoped(outputs, *[plgpu.ACC((CHUNK, CHUNK), jnp.float32)] * 3)

    def add(acc):
        plgpu.wgmma(acc, transposed("values"), ref("writes"))
        mma.registers(acc, x, ref("changes"))

    keep = columns_to(plgpu.load(r.keep_s.at[slot], layout=PER_COLUMN))
    return mma.update((state * keep,), add)[0], {"y": y, "x": x, "states": rounded}
