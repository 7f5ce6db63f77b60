"""Gated linear attention on Hopper with decays per token and head: a scan, and the gradients of all chunks at once.

    y_i = sum_{j<=i} exp(a_i - a_j) (q_i.k_j) v_j + exp(a_i) S^T q_i
    S <- exp(a_c) S + sum_j exp(a_c - a_j) k_j v_j^T

for a chunk of c = 64 tokens, its sums a of log decays, and S before it. A thread block scans a batch row and head, with
a warpgroup for every 64 columns of v; both compute the scores. All tiles are (64, 64). The state is a float32
accumulator; wgmma reads a rounded copy.

Backward, two scans without outputs write, in bfloat16, S before every `PAIR` chunks and its cotangent dS after them,

    dS <- exp(a_c) dS + sum_i exp(a_i) q_i dy_i^T

in reverse. Then `mosaic_gpu_vjp.py` computes the gradients of all pairs of chunks at once.

Pallas' own barriers are off. Barriers are `commit_smem` of an output, before which all products are awaited, and the
wait for its copy. Weighted tiles alternate between two buffers. A slot of the ring is reloaded after the first
`commit_smem` of the next chunk.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.decays import log2_from_start
from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import Geometry, state_row
from pallas_kernels.gated_linear_attention.mosaic_gpu_vjp import PAIR, between, gradients
from pallas_kernels.hopper.levels import CHUNK, SHARED_BYTES, TILE_BYTES, tile
from pallas_kernels.hopper.ring import Ring, scan_order
from pallas_kernels.hopper.tiles import PER_ROW, WGMMA, Mma, launch, rows_to, start_state


def forward(q, k, v, log_decay, state, options, *, interpret=None):
    """y, the last state or None, and the states for `backward` or None (contract in `api.py`)."""
    g, tiles, log2 = _tiles(q, v, log_decay, PAIR if options.save_states else 1)
    found = _scan(
        "forward", tiles(k), tiles(v), log2, state, g,
        x=tiles(q), save=options.save_states, last=options.return_state, interpret=interpret,
    )  # fmt: skip
    return found["out"].reshape(g.b, -1, *v.shape[2:])[:, : v.shape[1]], found.get("last"), found.get("states")


def backward(q, k, v, log_decay, state, saved, dy, dstate, options, *, interpret=None):
    """Gradients of q, k, v, log_decay and state (or None); saved: the states."""
    (b, t, h, _), (g, tiles, log2) = v.shape, _tiles(q, v, log_decay, PAIR)
    queries, keys, values, dout = map(tiles, (q, k, v, dy))
    reverse = _scan(
        "cotangents", queries, dout, log2, dstate, g,
        save=True, last=state is not None, reverse=True, interpret=interpret,
    )  # fmt: skip
    pairs = dataclasses.replace(g, n=g.n // PAIR)
    found = gradients(queries, keys, values, dout, log2, saved, reverse["states"], pairs, interpret=interpret)

    def tokens(x, like):
        """(b, t, heads, width), summed over the heads that share one."""
        x = x.reshape(b, -1, like.shape[2], h // like.shape[2], like.shape[3])[:, :t]
        return x[:, :, :, 0] if x.shape[3] == 1 else x.astype(jnp.float32).sum(3).astype(like.dtype)

    dq, dk, dv = (tokens(found[name], like) for name, like in (("dq", q), ("dk", k), ("dv", v)))

    def by_pair(x):
        return x.reshape(b, h, pairs.n, -1)

    slope, written = by_pair(found["slopes"][:, :, 0]), by_pair(found["slopes"][:, :, 1])
    written = jnp.pad(written[..., :-1], ((0, 0), (0, 0), (0, 0), (1, 0)))
    within = lax.cumsum(slope, axis=3, reverse=True) + lax.cumsum(written, axis=3)
    dlog_decay = within + by_pair(found["around"]).sum(3, keepdims=True)
    return dq, dk, dv, dlog_decay.reshape(b, h, -1)[:, :, :t].swapaxes(1, 2), reverse.get("last")


def _tiles(q, v, log_decay, multiple: int):
    """Geometry with a multiple of chunks; function (b, t, heads, width) -> (b, n 64, heads width / 64, 64), padded with
    zeros; and log decays as `log2_from_start`, (b, h, n 64)."""
    (b, t, h, v_dim), (groups, k_dim) = v.shape, q.shape[2:]
    n = -(-t // (CHUNK * multiple)) * multiple

    def tiles(x):
        x = jnp.pad(x, ((0, 0), (0, n * CHUNK - t), (0, 0), (0, 0))) if n * CHUNK > t else x
        return x.reshape(b, n * CHUNK, -1, CHUNK)

    g = Geometry(b, h, n, k_dim // CHUNK, v_dim // CHUNK, sharing=h // groups, parts=1)
    return g, tiles, log2_from_start(log_decay, CHUNK, n * CHUNK).swapaxes(1, 2)


def _scan(
    name, keys, values, log2, start, g: Geometry, *, x=None, save=False, last=False, reverse=False, interpret=None
) -> dict[str, jax.Array]:
    """A scan of the module docstring.

    keys, values: tiles, in reverse q and dy; x: tiles of q, or None: no outputs; start: S before the scan, or None.
    Returns out (tiles like values), with `save` the states around pairs of chunks, (b h n/PAIR k/64 v/64 64, 64)
    bfloat16, and with `last` S after the scan, (b, h, k, v) float32.
    """
    arrays = {"keys": keys, "values": values} | ({} if x is None else {"x": x})
    width = {key: g.columns if key == "values" else g.rows for key in arrays}
    each = sum(width.values())
    stages = min(4, (SHARED_BYTES // TILE_BYTES - g.columns * (g.rows + 3)) // each)

    def body(r):
        batch, head = lax.axis_index("b"), lax.axis_index("h")
        warpgroup = lax.axis_index("warpgroup") if g.columns > 1 else jnp.int32(0)
        index = scan_order(g.n, reverse)
        loads = [(r.log2, lambda row: (batch, head, pl.ds(row, CHUNK)), lambda slot: r.log2_s.at[slot])]
        for key in arrays:
            for i in range(width[key]):
                at = (head if key == "values" else g.of_keys(head)) * width[key] + i

                def where(row, at=at):
                    return (batch, pl.ds(row, CHUNK), at)

                loads.append((getattr(r, key), where, lambda slot, key=key, i=i: getattr(r, f"{key}_s").at[slot, i]))
        empty = r.empty if g.columns > 1 else None
        ring = Ring(tuple(loads), lambda x: index(x) * CHUNK, jnp.int32(g.n), stages, r.full, empty, lag=1)
        pl.when(warpgroup == 0)(ring.start)
        r.index_s[warpgroup] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW).astype(jnp.float32)
        states = [None if start is None else r.start.at[batch, head, i, warpgroup] for i in range(g.rows)]
        state = tuple(map(start_state, states))
        mma = Mma(None if interpret is None else (r.staging,), warpgroup)

        def copy_state(position):
            """Copies the state before a pair of chunks from shared memory."""
            first = state_row(pairs, batch, head, lax.div(index(position), jnp.int32(PAIR)))
            for i in range(g.rows):
                rows = pl.ds(first + (i * g.columns + warpgroup) * CHUNK, CHUNK)
                plgpu.copy_smem_to_gmem(r.state_s.at[warpgroup, i], r.states.at[rows])

        def chunk(position, state):
            write = copy_state if save else None
            out, state = _chunk(r, mma, ring, warpgroup, position, state, write, reverse=reverse)
            if x is not None:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                r.out_s[warpgroup] = out.astype(values.dtype)
                plgpu.commit_smem()
                at = batch, pl.ds(position * CHUNK, CHUNK), head * g.columns + warpgroup
                plgpu.copy_smem_to_gmem(r.out_s.at[warpgroup], r.out.at[at])
            return state

        state = lax.fori_loop(0, g.n, chunk, state)
        pl.when(warpgroup == 0)(ring.drain)
        plgpu.wait_smem_to_gmem(0)
        if last:
            for i, part in enumerate(state):
                r.last[batch, head, i, warpgroup] = part

    pairs = dataclasses.replace(g, n=g.n // PAIR)
    outputs = {} if x is None else {"out": jax.ShapeDtypeStruct(values.shape, values.dtype)}
    if save:
        outputs["states"] = jax.ShapeDtypeStruct((state_row(pairs, g.b, 0, 0), CHUNK), jnp.bfloat16)
    if last:
        outputs["last"] = jax.ShapeDtypeStruct((g.b, g.h, g.rows, g.columns, CHUNK, CHUNK), jnp.float32)
    scratch: dict[str, Any] = {f"{key}_s": tile(stages, width[key]) for key in arrays}
    scratch |= {"log2_s": plgpu.SMEM((stages, CHUNK), jnp.float32), "state_s": tile(g.columns, g.rows)}
    scratch |= {"weighted_s": tile(g.columns, 2), "out_s": tile(g.columns)}
    scratch["index_s"] = plgpu.SMEM((g.columns, CHUNK), jnp.float32)
    scratch |= {"full": plgpu.Barrier(num_arrivals=each + 1, num_barriers=stages)}
    if g.columns > 1:
        scratch["empty"] = plgpu.Barrier(num_arrivals=1, num_barriers=stages)
    if interpret is not None:
        scratch["staging"] = tile(g.columns)
    if start is not None:
        start = start.astype(jnp.float32).reshape(g.b, g.h, g.rows, CHUNK, g.columns, CHUNK).swapaxes(3, 4)
    found = launch(
        f"gated_linear_{name}", body, {**arrays, "log2": log2, "start": start}, outputs, scratch,
        grid={"b": g.b, "h": g.h}, warpgroups=g.columns, interpret=interpret,
    )  # fmt: skip
    if last:
        found["last"] = found["last"].swapaxes(3, 4).reshape(g.b, g.h, g.rows * CHUNK, g.columns * CHUNK)
    return found


def _chunk(r, mma: Mma, ring: Ring, warpgroup, position, state, write, *, reverse: bool):
    """out (64, 64) of the warpgroup's columns (or None) and the next state; write(position) copies states."""
    slot = lax.rem(position, jnp.int32(ring.stages))
    plgpu.barrier_wait(r.full.at[slot])
    sums, total = plgpu.load(r.log2_s.at[slot], layout=PER_ROW), r.log2_s[slot, CHUNK - 1]
    values, weighted = r.values_s.at[slot, warpgroup], r.weighted_s.at[warpgroup, lax.rem(position, jnp.int32(2))]
    x = plgpu.load(values, layout=WGMMA).astype(jnp.float32) * rows_to(jnp.exp2(sums if reverse else total - sums))
    weighted[...] = x.astype(jnp.bfloat16)
    outputs, before_pair = hasattr(r, "x_s"), lax.rem(position, jnp.int32(PAIR)) == 0

    def round_state():
        if not outputs:  # else the previous output has waited
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        for i, part in enumerate(state):
            r.state_s[warpgroup, i] = part.astype(jnp.bfloat16)

    if outputs:
        round_state()
    else:
        pl.when(before_pair)(round_state)
    plgpu.commit_smem()
    if write is not None:
        pl.when(before_pair)(lambda: write(position))

    @pl.when(warpgroup == 0)
    def _():
        ring.await_free(position)
        ring.refill(position)

    def run(scores, past, out):
        for i in range(len(state)):
            plgpu.wgmma(scores, r.x_s.at[slot, i], r.keys_s.at[slot, i].transpose((1, 0)))
        for i in range(len(state)):
            plgpu.wgmma(past, r.x_s.at[slot, i], r.state_s.at[warpgroup, i])
        weights = scores[...] * between(r.log2_s.at[slot], r.index_s.at[warpgroup])
        mma.registers(out, weights.astype(jnp.bfloat16), values)
        return out[...] + past[...] * rows_to(jnp.exp2(sums))

    out = None
    if outputs:
        out = pl.run_scoped(run, *[plgpu.ACC((CHUNK, CHUNK), jnp.float32)] * 3)

    def add(*parts):
        for i, part in enumerate(parts):
            plgpu.wgmma(part, r.keys_s.at[slot, i].transpose((1, 0)), weighted)

    kept = jnp.exp2(total)
    state = mma.update(tuple(part * kept for part in state), add)
    if ring.empty is not None:

        @pl.when(warpgroup == 1)
        def _():
            plgpu.barrier_arrive(ring.empty.at[slot])

    return out, state
